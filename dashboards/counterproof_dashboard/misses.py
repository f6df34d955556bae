"""Near misses of a study's sealed workloads: read from its files, with what its runs really hit beside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from counterproof.errors import CounterproofError
from counterproof.measure.prefix_miss import MOST_REQUESTS, NearMiss, near_misses
from counterproof.workload import sealed
from counterproof_dashboard import findings, samples, three_diffs
from counterproof_dashboard.data import Run, Study
from counterproof_dashboard.text import NOT_RECORDED

Prompts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Workload:
    """One block's prompts in order; `requests` is how many there are, more than `prompts` where it is too many.

    `reason`: why there are none, not escaped.
    """

    prompts: Prompts = ()
    requests: int = 0
    reason: str = ""


def blocks(study: Study) -> list[int]:
    """Blocks whose sealed workload lies in the study's folder."""
    try:
        names = [path.stem for path in (study.folder / "workloads").glob("*.parquet")]
    except OSError:
        return []
    planned = {run.block for run in study.sealed()}
    return sorted(int(name) for name in names if name.isdigit() and int(name) in planned)


def workload(study: Study, block: int) -> Workload:
    """The sealed requests of a block, held against the digest that the plan registered."""
    digests = findings.get(study.plan, "workload", "sha256_by_block")
    expected = digests[block] if isinstance(digests, list) and block < len(digests) else None
    path: Path = study.folder / "workloads" / f"{block:02d}.parquet"
    if not isinstance(expected, str):
        return Workload(reason="The plan does not register this workload.")
    try:
        requests = sealed.read(path, expected)
    except (CounterproofError, OSError, TypeError, ValueError) as error:
        return Workload(reason=f"The workload cannot be shown: {error}")
    kept = requests[:MOST_REQUESTS]
    return Workload(tuple(request.token_ids for request in kept), len(requests))


def effective(study: Study, block: int) -> dict[str, Any] | None:
    """What the engine of the candidate's run (else the baseline's) says that it ran; None: not recorded."""
    runs = {run.arm: run for run in study.sealed() if run.block == block}
    for arm in ("candidate", "baseline"):
        found = three_diffs.effective_of(runs.get(arm))
        if found is not None and block_tokens(found):
            return found
    return None


def block_tokens(found: dict[str, Any]) -> int:
    """Tokens per block, 0 where that is not recorded."""
    size = found.get("kv_cache.block_tokens")
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else 0


def tokenizer_of(study: Study, block: int) -> tuple[str, str]:
    """(model as the plan names it, sha256 of the tokenizer's files); empty where it is not recorded."""
    model = findings.text(findings.get(study.plan, "arms", "baseline", "config", "engine.model"))
    run = next((run for run in study.sealed("baseline") if run.block == block), None)
    found = three_diffs.environment_of(run) or {}
    return model, findings.text(found.get("model.tokenizer_sha256"))


def hits(run: Run | None) -> dict[int, int]:
    """Tokens of each request that the run took from a cache, where it recorded them."""
    if run is None:
        return {}
    frame = samples.read_columns(run.folder / "requests.parquet", ("request_index", "cached_tokens"))
    if frame is None:
        return {}
    known = frame.dropna()
    return {int(i): int(n) for i, n in zip(known["request_index"], known["cached_tokens"], strict=True)}


def table(study: Study, block: int, found: list[NearMiss]) -> pd.DataFrame:
    """One row a near miss, all text but the numbers, with what both arms' runs of the block really hit."""
    runs = {run.arm: hits(run) for run in study.sealed() if run.block == block}
    rows = []
    for miss in found:
        row: dict[str, object] = {
            "Request": miss.request,
            "Nearest earlier": miss.earlier,
            "Prompt tokens": miss.prompt_tokens,
            "Same at the start": miss.common_tokens,
            "Same at the end": miss.ending_tokens,
            "Can be hit": miss.hit_tokens,
            "Shared, computed again": miss.lost_tokens,
        }
        for arm in ("baseline", "candidate"):
            value = runs.get(arm, {}).get(miss.request)
            row[f"Hit by {arm}"] = NOT_RECORDED if value is None else str(value)
        rows.append(row)
    return pd.DataFrame(rows)


def nearest(prompts: Prompts, size: int) -> list[NearMiss]:
    """`near_misses` of one workload."""
    return near_misses(prompts, size)
