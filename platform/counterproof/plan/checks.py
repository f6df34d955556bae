"""What is refused at registration, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator

from counterproof.errors import InputError, RefusedError
from counterproof.measure.bottleneck import KINDS as KINDS_OF_BOTTLENECK
from counterproof.measure.metrics import METRICS, QUANTILES
from counterproof.measure.percentile import PERCENTILES, floor_count
from counterproof.measure.quality import QUALITY, STATISTIC
from counterproof.plan.load_checks import load_faults
from counterproof.plan.predict import keeps_documents
from counterproof.plan.schema import ExperimentConfig
from counterproof.plan.server_checks import server_faults

MIN_BLOCKS = 6
LEAST_PROBE_REQUESTS = 3
MAX_BLOCKS = 99
KINDS = ("exact", "rate", "sampled")
DIRECTIONS = ("lower", "higher", "equal")
# Targets that keep documents and name them by id.
KEEPERS = ("intaglio_local", "http")
PREDICTORS = ("kv_bytes",)
OUTPUTS = ("outputs", "identical", "exact")
BETWEEN_TOKENS = ("tpot_ms", "itl_ms", "inter_chunk_ms")


def check(config: ExperimentConfig, *, exploratory: bool) -> None:
    """Raise InputError that lists every fault of the study, its workload, its metrics and guardrails."""
    faults = [*_study(config, exploratory), *_workload(config), *server_faults(config), *_metrics(config)]
    if faults:
        raise InputError(f"{config.name} cannot be registered: {faults[0]}", details=faults[1:])


def refuse_dirty(files: tuple[str, ...]) -> None:
    """Raise RefusedError that lists the uncommitted changes: nobody could say which code was measured."""
    if files:
        shown = [*files[:20], *([f"... and {len(files) - 20} more"] if len(files) > 20 else [])]
        raise RefusedError(
            "the checkout has uncommitted changes, so the measured code has no name",
            details=[*shown, "commit them, or add --exploratory: such a study can never claim anything"],
        )


def _study(config: ExperimentConfig, exploratory: bool) -> Iterator[str]:
    study = config.study
    if not 1 <= study.blocks <= MAX_BLOCKS:
        yield f"study.blocks must be between 1 and {MAX_BLOCKS}, not {study.blocks}"
    elif study.blocks < MIN_BLOCKS and not exploratory:
        yield (
            f"study.blocks is {study.blocks}, but an interval needs at least {MIN_BLOCKS} "
            "(fewer are possible with --exploratory)"
        )
    if not 0 <= study.reserve_blocks <= MAX_BLOCKS - study.blocks:
        yield (
            f"study.reserve_blocks must be between 0 and {MAX_BLOCKS} less study.blocks, "
            f"not {study.reserve_blocks}"
        )
    if not 0 < study.aa_band < 1:
        yield f"study.aa_band must lie between 0 and 1, not {study.aa_band}"
    if study.slowed_delay_us < 1:
        yield "study.slowed_delay_us must be at least 1: it is the effect that the set-up must be able to see"
    if study.equivalence_requests < 0:
        yield "study.equivalence_requests must not be negative"
    attacks = None if config.factor is None else config.factor.attacks
    if attacks not in (None, *KINDS_OF_BOTTLENECK) and (attacks or not exploratory):
        yield (
            f"factor.attacks is '{attacks}', but a plan says which bottleneck its change attacks: "
            f"{', '.join(KINDS_OF_BOTTLENECK)}"
        )
    lossless = config.factor is not None and config.factor.lossless
    if lossless and study.equivalence_requests == 0 and not exploratory:
        yield (
            "study.equivalence_requests is 0, but a change that is declared lossless is compared bitwise; "
            "without that phase the evidence would be invalid"
        )
    if study.run_deadline_s <= 0:
        yield "study.run_deadline_s must be positive"
    if study.attempts < 1:
        yield "study.attempts must be at least 1"
    if config.engine.inject.step_delay_us:
        yield "engine.inject.step_delay_us belongs to the slowed arm; leave it at 0"
    if config.engine.inject.sabotage is not None:
        yield "engine.inject.sabotage belongs to the sabotaged probe; leave it at null"
    if config.engine.inject.corner is not None:
        yield "engine.inject.corner belongs to the test of a counterexample search; leave it at null"
    if not study.probes and not exploratory:
        yield "study.probes is false, which is possible with --exploratory only: nothing would try to overturn"
    if study.probe_requests is not None and not LEAST_PROBE_REQUESTS <= study.probe_requests <= 1_000_000:
        yield f"study.probe_requests must be null or at least {LEAST_PROBE_REQUESTS}, not {study.probe_requests}"
    if lossless and config.factor is not None and config.factor.path == "engine.numerics.mode":
        yield (
            "engine.numerics.mode is what the bitwise comparison sets, so it cannot be the lossless factor; "
            "declare lossless: false and register a quality bound"
        )


def _workload(config: ExperimentConfig) -> Iterator[str]:
    load = config.workload
    at_least_one = {
        "requests": load.requests,
        "concurrency": load.concurrency,
        "prompt_tokens": load.prompt_tokens,
        "max_new_tokens": load.max_new_tokens,
    }
    yield from load_faults(load)
    if keeps_documents(config) and load.builder != "shared_documents":
        yield (
            f"engine.context_cache keeps documents, and workload.builder {load.builder} names none: "
            "take shared_documents"
        )
    yield from _documents_sent(config)
    if load.min_prompt_tokens is not None and load.builder == "trace":
        yield "workload.min_prompt_tokens: a trace has its own prompt lengths; leave it at null"
    elif load.min_prompt_tokens is not None and not 1 <= load.min_prompt_tokens <= load.prompt_tokens:
        yield (
            f"workload.min_prompt_tokens must be null or between 1 and prompt_tokens ({load.prompt_tokens}), "
            f"not {load.min_prompt_tokens}"
        )
    if load.min_new_tokens is not None and load.builder == "trace":
        yield "workload.min_new_tokens: a trace has its own output lengths; leave it at null"
    elif load.min_new_tokens is not None and not 1 <= load.min_new_tokens <= load.max_new_tokens:
        yield (
            f"workload.min_new_tokens must be null or between 1 and max_new_tokens ({load.max_new_tokens}), "
            f"not {load.min_new_tokens}"
        )
    for name, value in at_least_one.items():
        if not 1 <= value <= 1_000_000:
            yield f"workload.{name} must be between 1 and 1000000, not {value}"
    if not 0 <= load.warmup_requests <= 1000:
        yield f"workload.warmup_requests must be between 0 and 1000, not {load.warmup_requests}"
    if load.temperature < 0 or not 0 < load.top_p <= 1 or not 0 <= load.min_p < 1 or load.top_k < 0:
        yield "workload: temperature >= 0, top_k >= 0, 0 < top_p <= 1 and 0 <= min_p < 1 must hold"
    if load.repetition_penalty <= 0 or load.request_timeout_s <= 0:
        yield "workload: repetition_penalty and request_timeout_s must be positive"


def _documents_sent(config: ExperimentConfig) -> Iterator[str]:
    if not keeps_documents(config):
        return
    if config.target not in KEEPERS:
        yield (
            f"engine.context_cache: the target {config.target} is sent documents inlined; "
            f"take {' or '.join(KEEPERS)}"
        )
    elif config.target == "http" and (config.server.api, config.server.prompts) != ("completions", "tokens"):
        yield (
            "engine.context_cache: what stands behind a document goes as token ids; "
            "take server.api=completions and server.prompts=tokens"
        )


def _metrics(config: ExperimentConfig) -> Iterator[str]:
    primary = config.primary
    if primary.better not in ("lower", "higher"):
        yield f"primary.better must be lower or higher, not '{primary.better}'"
    if not 0 < primary.sesoi < 1:
        yield f"primary.sesoi must lie between 0 and 1, not {primary.sesoi}"
    yield from _measurable("primary", primary.metric, primary.statistic, primary.better, "sampled")
    yield from _resolvable("primary", primary.metric, primary.statistic, config)
    seen = set()
    for rail in config.guardrails:
        name = f"guardrail {rail.metric} {rail.statistic}"
        if rail.kind not in KINDS or rail.better not in DIRECTIONS:
            yield f"{name}: kind must be one of {', '.join(KINDS)} and better one of {', '.join(DIRECTIONS)}"
        if rail.margin < 0:
            yield f"{name}: the margin must not be negative"
        if rail.predict is not None and rail.predict not in PREDICTORS:
            yield f"{name}: there is no arithmetic called '{rail.predict}'; there is: {', '.join(PREDICTORS)}"
        if rail.predict is not None and not rail.reason:
            yield f"{name}: a price registered beforehand needs a reason"
        if (rail.metric, rail.statistic) in seen:
            yield f"{name} is given twice"
        seen.add((rail.metric, rail.statistic))
        if rail.metric in QUALITY and (config.factor is None or config.factor.lossless):
            yield f"{name}: quality is measured where the factor declares lossless: false"
        elif rail.metric in QUALITY and not config.study.equivalence_requests:
            yield f"{name}: quality is measured on study.equivalence_requests, which is 0"
        yield from _measurable(name, rail.metric, rail.statistic, rail.better, rail.kind)
        yield from _resolvable(name, rail.metric, rail.statistic, config)


def _measurable(name: str, metric: str, statistic: str, better: str, kind: str) -> Iterator[str]:
    """What nothing measures, or what would be judged in the wrong direction, is told before the runs."""
    if metric == OUTPUTS[0]:
        if (metric, statistic, kind) != OUTPUTS:
            yield f"{name}: outputs are compared as 'identical', by kind exact"
        return
    if metric in QUALITY:
        if (statistic, kind, better) != (STATISTIC, "exact", QUALITY[metric].better):
            yield f"{name}: it is '{STATISTIC}', judged by kind exact, better {QUALITY[metric].better}"
        return
    known = METRICS.get(metric)
    if known is None:
        yield f"{name}: there is no metric '{metric}'; there are: {', '.join(METRICS)}"
        return
    statistics = known.statistics
    if statistics == QUANTILES:
        statistics = (*QUANTILES, *(s for s in PERCENTILES if s not in QUANTILES))
    if statistic not in statistics:
        yield f"{name}: {metric} has no statistic '{statistic}'; it has: {', '.join(statistics)}"
    if better in DIRECTIONS and better != known.better and not (better == "equal" and kind == "exact"):
        yield f"{name}: better is {known.better} for {metric}, not {better}"
    elif better == "equal" and kind != "exact":
        yield f"{name}: that nothing changes (better: equal) is judged by kind exact only"


def _resolvable(name: str, metric: str, statistic: str, config: ExperimentConfig) -> Iterator[str]:
    requests = config.workload.requests
    least = config.workload.min_new_tokens or config.workload.max_new_tokens
    if metric in BETWEEN_TOKENS and least < 2:
        yield f"{name}: {metric} needs at least 2 tokens a request, workload may ask for {least}"
    if statistic in PERCENTILES:
        needed = floor_count(PERCENTILES[statistic])
        if requests < needed:
            yield (
                f"{name}: {statistic} of {metric} needs {needed} requests a run, workload.requests is {requests}"
            )
