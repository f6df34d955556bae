"""The author's results in a packet, and whether they follow from the author's own rows.

Summaries of a metric over single requests are recomputed from the rows with the harness's own definitions
(no second percentile rule). Those of the whole run (start-up time, memory) have no rows and are taken as
stated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from counterproof.measure.interval import log_ratios
from counterproof.measure.latency import COLUMNS, samples
from counterproof.measure.metrics import summarise
from counterproof.record.schema import ARMS
from counterproof_review.packet import layout, tables
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive

ROLES = ARMS  # a claim needs its baseline and both controls
MAX_RUN_ROWS = 1_000_000
RELATIVE = 1e-12  # the same function over the same numbers; room for the order of a sum only


def recomputable(metric: str) -> bool:
    """Whether a metric is a latency of single requests."""
    return metric in COLUMNS


def run_statistic(requests: pd.DataFrame, metric: str, statistic: str) -> float | None:
    """The statistic of a request metric over one run's rows; None where it does not exist."""
    return summarise(samples(requests, metric), statistic).value


def check(archive: Archive, results: Mapping[str, Any], packet: Mapping[str, Any], opaque: set[str]) -> str:
    """Hold results against arms, declared counts and rows; return what was done, in words.

    Raises PacketError E_ARMS or E_ROWS. Missing rows are never skipped.
    """
    arms = results["arms"]
    if set(arms.values()) != opaque or len(set(arms.values())) != len(arms):
        raise PacketError("E_ARMS", "the arm map does not name every arm once", path=layout.RESULTS)
    if missing := sorted(set(ROLES) - set(arms)):
        raise PacketError("E_ARMS", f"no arm is the {missing[0]}", path=layout.RESULTS)
    counts = packet["requests"]
    _check_shapes(results, opaque, counts)
    _check_ratios(results)
    rows = tables.check(archive, layout.RESULT_ROWS)
    if not rows == results["rows"] == len(opaque) * sum(counts):
        raise PacketError(
            "E_ROWS",
            f"{rows} rows, declared {results['rows']}, and the runs need {len(opaque) * sum(counts)}",
            path=layout.RESULT_ROWS,
        )
    found = _per_block(archive, results, opaque, counts)
    if found is None:
        return "row counts as declared, ratios follow from the summaries; this metric has no rows of its own"
    for name, values in found.items():
        if not _same(values, results["per_block"][name]):
            raise PacketError(
                "E_ROWS", f"the summaries of arm {name} do not follow from its rows", path=layout.RESULTS
            )
    return f"{results['rows']} rows; every summary and ratio follows from them"


def groups(archive: Archive) -> Iterator[tuple[tuple[str, int], pd.DataFrame]]:
    """The author's rows, one run at a time: ((opaque arm, block), requests). Rows must stand in this order."""
    held: list[pa.RecordBatch] = []
    key: tuple[str, int] | None = None
    seen: set[tuple[str, int]] = set()
    for batch in tables.batches(archive, layout.RESULT_ROWS):
        for part_key, part in _parts(batch):
            if part_key != key:
                if key is not None:
                    yield key, _frame(held)
                if part_key in seen:
                    raise PacketError("E_ROWS", "the rows of one run are torn apart", path=layout.RESULT_ROWS)
                seen.add(part_key)
                key, held = part_key, []
            held.append(part)
            if sum(p.num_rows for p in held) > MAX_RUN_ROWS:
                raise PacketError("E_LIMIT", "a run has too many rows", path=layout.RESULT_ROWS)
    if key is not None:
        yield key, _frame(held)


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
    arms, blocks = batch.column("arm").to_pylist(), batch.column("block").to_pylist()
    start = 0
    for index in range(1, len(arms) + 1):
        if index == len(arms) or (arms[index], blocks[index]) != (arms[start], blocks[start]):
            yield (arms[start], blocks[start]), batch.slice(start, index - start)
            start = index


def _frame(parts: list[pa.RecordBatch]) -> pd.DataFrame:
    frame: pd.DataFrame = pa.Table.from_batches(parts).to_pandas()
    return frame.sort_values("request_index", ignore_index=True)


def _check_shapes(results: Mapping[str, Any], opaque: set[str], counts: list[int]) -> None:
    blocks = len(counts)
    per_block = results["per_block"]
    if set(per_block) != opaque or any(len(values) != blocks for values in per_block.values()):
        raise PacketError("E_ROWS", "the summaries are not one per arm and block", path=layout.RESULTS)
    runs = {(run["arm"], run["block"]) for run in results["runs"]}
    wanted = {(arm, block) for arm in opaque for block in range(blocks)}
    if runs != wanted or len(results["runs"]) != len(wanted):
        raise PacketError("E_ROWS", "the runs are not one per arm and block", path=layout.RESULTS)
    if any(len(run["outputs_sha256"]) != counts[run["block"]] for run in results["runs"]):
        raise PacketError("E_ROWS", "a run does not have one output per request", path=layout.RESULTS)
    if set(results["log_ratios"]) != set(results["arms"]) - {"baseline"}:
        raise PacketError("E_ROWS", "there is not one sample of ratios per arm", path=layout.RESULTS)


def _per_block(
    archive: Archive, results: Mapping[str, Any], opaque: set[str], counts: list[int]
) -> dict[str, list[float | None]] | None:
    metric, statistic = results["primary"].get("metric"), results["primary"].get("statistic")
    found: dict[str, list[float | None]] = {name: [None] * len(counts) for name in opaque}
    rows = 0
    seen = set()
    outputs = {(run["arm"], run["block"]): run["outputs_sha256"] for run in results["runs"]}
    for (arm, block), frame in groups(archive):
        if arm not in opaque or not isinstance(block, int) or not 0 <= block < len(counts):
            raise PacketError("E_ROWS", "a row belongs to no run of this packet", path=layout.RESULT_ROWS)
        if len(frame) != counts[block] or list(frame["request_index"]) != list(range(counts[block])):
            raise PacketError(
                "E_ROWS",
                f"block {block} of {arm} has {len(frame)} rows, not the {counts[block]} requests it declares",
                path=layout.RESULT_ROWS,
            )
        if [v if isinstance(v, str) else None for v in frame["output_sha256"]] != outputs[(arm, block)]:
            raise PacketError(
                "E_ROWS", f"block {block} of {arm} has other outputs than its rows", path=layout.RESULTS
            )
        rows += len(frame)
        seen.add((arm, block))
        if recomputable(str(metric)):
            found[arm][block] = run_statistic(frame, str(metric), str(statistic))
    if len(seen) != len(opaque) * len(counts) or rows != results["rows"]:
        raise PacketError("E_ROWS", f"{rows} rows, declared {results['rows']}", path=layout.RESULT_ROWS)
    return found if recomputable(str(metric)) else None


def _check_ratios(results: Mapping[str, Any]) -> None:
    arms, per_block = results["arms"], results["per_block"]
    for arm, stated in results["log_ratios"].items():
        again = log_ratios(per_block[arms[arm]], per_block[arms["baseline"]])
        if not _same(again, stated):
            raise PacketError(
                "E_ROWS", f"the ratios of '{arm}' do not follow from the summaries", path=layout.RESULTS
            )


def _same(first: list[float | None], second: list[Any]) -> bool:
    if len(first) != len(second):
        return False
    for a, b in zip(first, second, strict=True):
        if a is None or b is None:
            if a is not b:
                return False
        elif (
            isinstance(b, bool) or not isinstance(b, int | float) or abs(a - b) > RELATIVE * max(1.0, abs(a))
        ):
            return False
    return True
