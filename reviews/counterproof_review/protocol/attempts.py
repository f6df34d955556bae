"""Attempts of a reviewer: each is announced before it runs and entered when it ended, however it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterproof.errors import EvidenceError
from counterproof.record import canonical
from counterproof_review.packet import replay, sealing, surroundings
from counterproof_review.packet.executor import ESTIMATES
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.replay import Options

COMPLETED, CRASHED = "completed", "crashed"
MAX_REASON = 300
_PER_RUN = ("arm", "block", "value", "samples", "failed_requests", "output_tokens", "step_ms", "bound_by")

Observation = dict[str, dict[str, Any]]
"""One block as one attempt measured it: opaque arm -> its run."""


def run(
    packet: Path,
    folder: Path,
    number: int,
    nonce: bytes,
    blocks: int | None,
    models: Sequence[Path],
    say: Callable[[str], None],
    progress: Callable[[dict[str, Any]], None],
) -> tuple[dict[str, Any], BaseException | None]:
    """Measure once in an empty `folder`. Returns the body of END, and the error that ended the attempt early.

    An attempt that fails keeps the runs it sealed. Raw records stay in `folder`.
    """
    options = Options(folder, blocks, tuple(models), nonce, keep=True)
    try:
        with Archive.open(packet) as archive:
            found = replay.measure(archive, options, say, progress)
    except BaseException as error:
        clear(folder)
        return ended(number, folder, CRASHED, str(error) or type(error).__name__), error
    clear(folder)
    body = ended(number, folder, COMPLETED, "")
    hardware = surroundings.hardware_class(found.identity)
    return {**body, "hardware": hardware, "network": found.network["probe"]}, None


def ended(number: int, folder: Path, status: str, reason: str) -> dict[str, Any]:
    """The body of END from what an attempt left in its folder."""
    path = folder / ESTIMATES
    try:
        estimates = canonical.read_json(path)
    except (EvidenceError, OSError):
        estimates = {"runs": [], "failed": [], "rounding": {}}
    return {
        "attempt": number,
        "status": status,
        "reason": reason[:MAX_REASON],
        "runs": [_run(one) for one in estimates["runs"]],
        "rounding": estimates.get("rounding", {}),
        "failed_runs": len(estimates["failed"]),
        "estimates_sha256": canonical.sha256_file(path) if path.is_file() else None,
        "hardware": None,
        "network": None,
    }


def clear(folder: Path) -> None:
    """Remove what an attempt needed to run; its raw records and estimates stay."""
    if folder.is_dir():
        replay.tidy(folder, kept=("runs",))


def observations(ends: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> list[Observation]:
    """All blocks of all attempts in which every arm ran, in order: nothing complete is ever left out."""
    found = []
    for body in ends:
        blocks: dict[int, Observation] = {}
        for one in body["runs"]:
            blocks.setdefault(one["block"], {})[one["arm"]] = one
        found += [blocks[block] for block in sorted(blocks) if set(blocks[block]) == set(arms)]
    return found


def summary(ends: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Attempts as FREEZE and the verdict list them."""
    return [
        {
            "attempt": body["attempt"],
            "status": body["status"],
            "blocks": len(observations([body], arms)),
            "failed_runs": body["failed_runs"],
            "reason": body["reason"],
        }
        for body in ends
    ]


def _run(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: one.get(name) for name in _PER_RUN},
        "outputs_sha256": sealing.digest_of(list(one["outputs_sha256"])),
        "against": dict(one.get("against") or {}),
        "effective_sha256": one["effective_sha256"],
        "manifest_sha256": one["manifest_sha256"],
    }
