"""What an experiment may say: typed configurations that Hydra composes into.

Every leaf has a declared type, so that an unknown key, a wrong type or a missing value is refused while
composing. The engine's own configuration stands under `engine` unchanged. Classes that only exist once
Hydra has merged a YAML node into them (optional nodes, list items) cannot be frozen; the composed tree is
read-only as a whole.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from intaglio.config import EngineConfig

SCHEMA_NAME = "counterproof_schema"

# What a user may not override: these make the experiment what it is.
FIXED = ("name", "question", "calibration", "factor", "guardrails")


@dataclass
class MovesConfig:
    """Fields that the factor necessarily moves besides itself. Only these are excepted from the diffs."""

    effective: list[str] = field(default_factory=list)
    environment: list[str] = field(default_factory=list)
    model: list[str] = field(default_factory=list)


@dataclass
class FactorConfig:
    """The one thing that varies.

    kind        leaf: `path` is a configuration leaf; group: `path` is a config group, and `bundle` lists
                exactly the leaves that its two options set differently
    lossless    whether outputs must stay the same
    bottleneck  the arithmetic that says why the change should help
    attacks     which bottleneck of the baseline it attacks: memory_capacity, memory_traffic, arithmetic,
                interconnect or scheduling; the report says whether that was the real one
    """

    path: str = MISSING
    kind: str = "leaf"
    baseline: Any = MISSING
    candidate: Any = MISSING
    lossless: bool = MISSING
    bottleneck: str = MISSING
    attacks: str = ""
    bundle: list[str] = field(default_factory=list)
    moves: MovesConfig = field(default_factory=MovesConfig)


@dataclass(frozen=True)
class PrimaryConfig:
    """The metric that decides. `sesoi`: smallest relative effect of interest, e.g. 0.05."""

    metric: str = MISSING
    statistic: str = MISSING
    better: str = "lower"
    sesoi: float = MISSING


@dataclass
class GuardrailConfig:
    """A metric that must not get worse by more than `margin` (relative).

    kind      exact (equality or an exact count), rate, or sampled (latency quantiles)
    predict   name of the arithmetic that registers the price beforehand: kv_bytes, or null
    reason    why this price is right (headroom, never observed noise)
    """

    metric: str = MISSING
    statistic: str = MISSING
    kind: str = MISSING
    margin: float = MISSING
    better: str = "lower"
    predict: str | None = None
    reason: str = ""


@dataclass(frozen=True)
class StudyConfig:
    """How the study is laid out.

    blocks                blocks that are always run
    reserve_blocks        blocks that are planned and sealed beforehand, and run (two at a time) only while the
                          A/A comparison is too imprecise to judge; never because of what the candidate shows
    equivalence_requests  prompts of the bitwise comparison (0: none)
    probes                whether every arm is probed after the blocks (see measure/probes.py); only an exploratory
                          study may go without
    probe_requests        requests of the held-out seed (null: as many as a block has)
    faults                whether every fault (see run/faults) strikes small copies of the study after its blocks; off
                          by default, since it takes about as long as two blocks and measures the set-up, not the change
    """

    blocks: int = 8
    reserve_blocks: int = 0
    seed: int = 20260101
    slowed_delay_us: int = 10_000
    aa_band: float = 0.05
    equivalence_requests: int = 0
    run_deadline_s: float = 900.0
    attempts: int = 3
    probes: bool = True
    probe_requests: int | None = None
    faults: bool = False


@dataclass(frozen=True)
class WorkloadConfig:
    """Which requests are sent, and how.

    builder         pydoc_questions, passage_questions, prompt_file, shared_documents, multi_turn or trace
    language        of the text: en or zh (pydoc_questions: en)
    prompt_tokens   longest prompt, in tokens of the model's tokenizer
    min_prompt_tokens  shortest prompt (null: any); near prompt_tokens it makes the work of all blocks alike
    min_new_tokens  shortest output, which is then drawn evenly up to max_new_tokens for each request (null: all have
                    max_new_tokens); requests of a closed loop that are of one length start and end together
    file, field     prompt_file: a text file (one prompt a line) or a .jsonl file and the field that holds it
    documents       shared_documents: how many, of `document_tokens` tokens, the requests of a block ask about
    turns           multi_turn: how many a conversation has, with given replies of at most `reply_tokens` tokens
    trace           trace: a file of `trace_format` azure or mooncake, also one of the project's own, for example
                    traces/unique_prompts.csv; its first `requests` rows are replayed with
                    its lengths times `length_scale` and its times times `time_scale` (0.5: twice as fast)
    arrival         closed (a free slot sends the next request), constant, poisson, gamma (bursty, with a
                    coefficient of variation `arrival_cv`) at `rate_per_s`, or trace (the trace's own times)
    concurrency     slots of the closed loop; an open loop has none and sends when the time has come
    """

    builder: str = MISSING
    requests: int = 11
    concurrency: int = 1
    prompt_tokens: int = 48
    min_prompt_tokens: int | None = None
    max_new_tokens: int = 24
    min_new_tokens: int | None = None
    warmup_requests: int = 1
    ignore_eos: bool = True
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    request_timeout_s: float = 300.0
    file: str | None = None
    field: str = "prompt"
    language: str = "en"
    documents: int = 2
    document_tokens: int = 256
    turns: int = 4
    reply_tokens: int = 48
    trace: str | None = None
    trace_format: str = "mooncake"
    length_scale: float = 1.0
    arrival: str = "closed"
    rate_per_s: float = 1.0
    arrival_cv: float = 1.0
    time_scale: float = 1.0


@dataclass
class ServerConfig:
    """The server of the targets `http` (intaglio's own) and `openai` (any that speaks OpenAI's API).

    base_url       a server that runs already, e.g. http://127.0.0.1:8000; null: start `command`
    command        an argument list, run without a shell; {port}, {host}, {python} and {model_folder} are filled in.
                   `http` needs none: it runs `intaglio serve` with the engine's configuration
    variables      NAME=VALUE entries for the command's environment
    key_variable   name of the environment variable that holds the API key; the key itself is never recorded
    model          name to send; empty: the first that /v1/models lists
    api, prompts   completions or chat; tokens or text (chat always sends text)
    dialect        openai, or extended (also ignore_eos, top_k, min_p, repetition_penalty, return_token_ids)
    ready_s, stop_s  how long it may take to become healthy, and to stop before it is killed
    """

    base_url: str | None = None
    command: list[str] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    key_variable: str | None = None
    model: str = ""
    api: str = "completions"
    prompts: str = "tokens"
    dialect: str = "extended"
    health_path: str = "/health"
    metrics_path: str | None = "/metrics"
    effective_path: str | None = None
    ready_s: float = 300.0
    stop_s: float = 20.0


@dataclass(frozen=True)
class ExperimentConfig:
    """One experiment. A calibration has no factor and can never claim."""

    name: str = MISSING
    question: str = MISSING
    calibration: bool = False
    target: str = "intaglio_local"
    engine: EngineConfig = field(default_factory=EngineConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    study: StudyConfig = field(default_factory=StudyConfig)
    factor: FactorConfig | None = None
    primary: PrimaryConfig = field(default_factory=PrimaryConfig)
    guardrails: list[GuardrailConfig] = field(default_factory=list)


def leaf_types() -> dict[str, tuple[type, ...]]:
    """`{dotted path: types}` of every leaf that the command line may override."""
    return {path: allowed for path, allowed in _walk(ExperimentConfig, "") if path.split(".")[0] not in FIXED}


def _walk(cls: Any, prefix: str) -> typing.Iterator[tuple[str, tuple[type, ...]]]:
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        declared = hints[item.name]
        path = f"{prefix}{item.name}"
        if dataclasses.is_dataclass(declared):
            yield from _walk(declared, f"{path}.")
        elif allowed := _scalars(declared):
            yield path, allowed


def _scalars(declared: Any) -> tuple[type, ...]:
    """The plain types a leaf admits; () for lists, nested optional nodes and untyped leaves."""
    parts = typing.get_args(declared) if isinstance(declared, types.UnionType) else (declared,)
    plain = (bool, int, float, str, types.NoneType)
    return tuple(parts) if all(part in plain for part in parts) else ()
