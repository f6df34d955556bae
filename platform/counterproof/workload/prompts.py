"""Where prompts come from: every builder gives distinct prompts of bounded length, in an order set by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from counterproof.errors import InputError
from counterproof.plan.schema import WorkloadConfig
from counterproof.workload.corpus import passage_questions
from counterproof.workload.pydoc_questions import question_texts
from counterproof.workload.shared_prefix import multi_turn, shared_documents

Encode = Callable[[str], list[int]]

BUILDERS = (
    "pydoc_questions",
    "passage_questions",
    "prompt_file",
    "shared_documents",
    "multi_turn",
    "trace",
)


def distinct_prompts(config: WorkloadConfig, encode: Encode, seed: int, count: int) -> list[tuple[int, ...]]:
    """`count` prompts as token ids, no two equal, none longer than `config.prompt_tokens` or shorter than
    `config.min_prompt_tokens`.

    Raises InputError when the source does not hold as many.
    """
    least = config.min_prompt_tokens or 1
    found: list[tuple[int, ...]] = []
    seen: set[tuple[int, ...]] = set()
    for ids in _source(config, encode, seed):
        if len(ids) >= least and ids not in seen:
            seen.add(ids)
            found.append(ids)
        if len(found) == count:
            return found
    raise InputError(
        f"the workload needs {count} different prompts of {least} to {config.prompt_tokens} tokens, "
        f"but {config.builder} has only {len(found)}",
        details=[
            "ask for fewer requests or blocks, raise workload.prompt_tokens, or lower workload.min_prompt_tokens"
        ],
    )


def refuse_repeats(blocks: Sequence[Sequence[tuple[int, ...]]], builder: str) -> None:
    """Raise InputError unless every prompt of every block is its own: a cache must not find one twice."""
    seen: dict[tuple[int, ...], int] = {}
    for number, prompts in enumerate(blocks):
        for ids in prompts:
            if ids in seen:
                raise InputError(
                    f"workload.builder {builder} makes one prompt of {len(ids)} tokens twice, "
                    f"in blocks {seen[ids]} and {number}",
                    details=["a cache could answer it; choose other prompts, or another study.seed"],
                )
            seen[ids] = number


def _source(config: WorkloadConfig, encode: Encode, seed: int) -> Iterator[tuple[int, ...]]:
    if config.builder == "pydoc_questions":
        return question_texts(encode, config.prompt_tokens, seed, config.min_prompt_tokens or 0)
    if config.builder == "prompt_file":
        return _file_prompts(config, encode, seed)
    if config.builder == "passage_questions":
        return passage_questions(encode, config.language, config.prompt_tokens, seed)
    if config.builder == "shared_documents":
        return shared_documents(config, encode, seed)
    if config.builder == "multi_turn":
        return multi_turn(config, encode, seed)
    raise InputError(
        f"there is no workload builder '{config.builder}'",
        details=[f"there are: {', '.join(BUILDERS)}"],
    )


def _file_prompts(config: WorkloadConfig, encode: Encode, seed: int) -> Iterator[tuple[int, ...]]:
    if config.file is None:
        raise InputError("workload.file is not set", details=["name a .txt or .jsonl file with your prompts"])
    texts = _read(Path(config.file).expanduser(), config.field)
    random.Random(f"prompts/{seed}").shuffle(texts)
    for text in texts:
        ids = tuple(encode(text))
        if len(ids) <= config.prompt_tokens:
            yield ids


def _read(path: Path, field: str) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"workload.file {path} cannot be read: {error}") from None
    if path.suffix != ".jsonl":
        return [line for line in lines if line.strip()]
    texts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)[field]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path.name} line {number} has no field '{field}': {error!r}") from None
        text = value[0] if isinstance(value, list) and value else value
        if not isinstance(text, str):
            raise InputError(f"{path.name} line {number}: '{field}' is not a text")
        texts.append(text)
    return texts
