"""Recorded traffic: Azure's 2023 CSV and Mooncake's JSONL, read into one kind of row.

Formats: TIMESTAMP,ContextTokens,GeneratedTokens with seven decimals (Azure/AzurePublicDataset), and timestamp (ms),
input_length, output_length, hash_ids with one id for each begun block of 512 prompt tokens (kvcache-ai/Mooncake).
"""

from __future__ import annotations

import csv
import datetime
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.errors import InputError
from intaglio.models.sources import data_root

AZURE, MOONCAKE = "azure", "mooncake"
FORMATS = (AZURE, MOONCAKE)
BLOCK_TOKENS = 512
_AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


@dataclass(frozen=True)
class TraceRow:
    """One recorded request. `time_ns` counts from an arbitrary moment; `hash_ids` is empty where none were kept."""

    time_ns: int
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


def locate(name: str) -> Path:
    """Where `workload.trace` lies: the path as it is, or one of the project's own below its data folder, e.g.
    traces/unique_prompts.csv."""
    path = Path(name).expanduser()
    own = path if path.is_absolute() else data_root() / path
    return own if own.is_file() and not path.exists() else path


def read(path: Path, kind: str, limit: int | None = None) -> list[TraceRow]:
    """The first `limit` rows of a trace. Raises InputError that names the line and what is wrong with it."""
    if kind not in FORMATS:
        raise InputError(f"workload.trace_format must be one of {', '.join(FORMATS)}, not '{kind}'")
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = _azure(stream) if kind == AZURE else _mooncake(stream)
            rows = list(itertools.islice(_checked(lines, path), limit))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"workload.trace {path} cannot be read: {error}") from None
    if not rows:
        raise InputError(f"workload.trace {path.name} has no rows")
    return rows


def _checked(rows: Iterator[tuple[int, TraceRow | str]], path: Path) -> Iterator[TraceRow]:
    for number, row in rows:
        fault = row if isinstance(row, str) else _fault(row)
        if fault is not None or isinstance(row, str):
            raise InputError(f"{path.name} line {number}: {fault}")
        yield row


def _fault(row: TraceRow) -> str | None:
    if row.prompt_tokens < 1 or row.output_tokens < 0:
        return f"{row.prompt_tokens} prompt and {row.output_tokens} output tokens are no request"
    if row.hash_ids and len(row.hash_ids) != -(-row.prompt_tokens // BLOCK_TOKENS):
        return f"{len(row.hash_ids)} hash_ids do not cover {row.prompt_tokens} tokens in blocks of {BLOCK_TOKENS}"
    return None


def _azure(stream: Iterable[str]) -> Iterator[tuple[int, TraceRow | str]]:
    reader = csv.reader(stream)
    if (header := next(reader, None)) is not None and [name.strip() for name in header] != _AZURE_COLUMNS:
        yield 1, f"the columns are {header}, not {_AZURE_COLUMNS}"
        return
    for number, fields in enumerate(reader, 2):
        if not fields:
            continue
        try:
            time, prompt, output = fields
            yield number, TraceRow(_nanoseconds(time), int(prompt), int(output))
        except ValueError as error:
            yield number, f"{fields} is no row of {','.join(_AZURE_COLUMNS)}: {error}"


def _nanoseconds(text: str) -> int:
    """Nanoseconds of `2023-11-16 18:17:03.9799600` since 1970; all decimals count."""
    whole, _, fraction = text.strip().partition(".")
    fraction = fraction.partition("+")[0]
    moment = datetime.datetime.strptime(whole.partition("+")[0], "%Y-%m-%d %H:%M:%S").replace(
        tzinfo=datetime.UTC
    )
    if len(fraction) > 9 or (fraction and not fraction.isdigit()):
        raise ValueError(f"'{text}' is no time")
    return int(moment.timestamp()) * 1_000_000_000 + int(fraction.ljust(9, "0") or 0)


def _mooncake(stream: Iterable[str]) -> Iterator[tuple[int, TraceRow | str]]:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            yield number, _mooncake_row(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            yield number, f"no row with timestamp, input_length, output_length and hash_ids: {error!r}"


def _mooncake_row(value: dict[str, Any]) -> TraceRow:
    ids = tuple(int(i) for i in value["hash_ids"])
    time_ns = round(float(value["timestamp"]) * 1_000_000)
    return TraceRow(time_ns, int(value["input_length"]), int(value["output_length"]), ids)
