"""`packet replay`: run a packet's arms again from the file alone and compare ratios with the author's.

The order of steps is the point: verify, find models by hash, measure in a process without network that knows
only opaque names, freeze the estimates, and only then open the author's part and compare.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.errors import InputError, SetupError
from counterproof.record import atomic, canonical, code_identity, environment
from counterproof.record.store import open_store
from counterproof.run import roofline
from counterproof.run.targets import registry
from counterproof_review.packet import (
    agreement,
    code_lock,
    extract,
    inputs,
    judgement,
    layout,
    manifest,
    models,
    offline,
    report_text,
    schedule,
    surroundings,
)
from counterproof_review.packet.arms import MODEL_PATHS
from counterproof_review.packet.child import run_executor
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.executor import ESTIMATES, TASK
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.verify import Verification, verify
from intaglio.models import catalogue

SCHEMA = "replication-replay/1"
RECORD = "replay.json"
REPORT = "replay.md"
NONCE_BYTES = 32
_MEASURED = ("packet", "runs", "workloads", "models", "home", "tmp", "guard", "store", TASK)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What whoever replays decides.

    folder    empty or absent; everything is written there
    blocks    how many blocks to run, None: as many as the packet has
    models    folders to search instead of the usual ones
    nonce     sets the order of runs, None: random
    keep      keep raw records, inputs and model links
    """

    folder: Path
    blocks: int | None = None
    models: tuple[Path, ...] = ()
    nonce: bytes | None = None
    keep: bool = False


@dataclass
class Replay:
    """A finished replay: its record as written, and where."""

    record: dict[str, Any]
    folder: Path


@dataclass(frozen=True)
class Measured:
    """What was measured, before anything of the author's was opened."""

    report: Verification
    estimates: dict[str, Any]
    blocks: int
    identity: dict[str, Any]
    network: dict[str, str]
    frozen: str
    nonce: bytes


def replay(
    archive: Archive, options: Options, say: Say, progress: Callable[[dict[str, Any]], None]
) -> Replay:
    """Replay a packet. Writes replay.json and returns it.

    The record of a sealed packet holds ratios of opaque pairs and no answer. Raises PacketError for a packet that is
    refused or a model that is not here, InputError for options that cannot be met, and what a run raises
    (ExecutionError, SetupError).
    """
    found = measure(archive, options, say, progress)
    record = _blind_record(found) if found.report.sealed else _record(found)
    record |= {"nonce": found.nonce.hex(), "network": found.network, "estimates_sha256": found.frozen}
    folder = options.folder.resolve()
    atomic.write_json(folder / RECORD, record)
    text = report_text.render_blind(record) if found.report.sealed else report_text.render(record)
    atomic.write_bytes(folder / REPORT, text.encode())
    return Replay(record, folder)


def measure(
    archive: Archive, options: Options, say: Say, progress: Callable[[dict[str, Any]], None]
) -> Measured:
    """Run a packet's arms and freeze what was seen in estimates.json, which is also there, as far as it came, when a
    run fails. Raises as `replay` does."""
    report = Verification()
    verify(archive, report)
    blocks = _blocks(options, report)
    check_target(report)
    roots = list(options.models) or models.default_roots()
    found = models.find(report.models.values(), roots)
    folder = extract.empty_folder(options.folder)
    nonce = options.nonce if options.nonce is not None else secrets.token_bytes(NONCE_BYTES)
    try:
        identity = _prepare(archive, report, found, folder, blocks, nonce)
        around = offline.prepare(folder, folder / "models")
        network = {**around.describe(), "probe": offline.probe(around)}
        if network["probe"] == "open":
            raise InputError("this machine can still be left although the network should be off")
        say(f"network off: {network['in_process']}; namespace: {network['namespace']}")
        error = run_executor(around, folder, progress)
        if error is not None:
            raise error
        estimates = canonical.read_json(folder / ESTIMATES)
        frozen = canonical.sha256_file(folder / ESTIMATES)
        say(f"estimates frozen: sha256 {frozen}")
        return Measured(report, estimates, blocks, identity, network, frozen, nonce)
    finally:
        if not options.keep:
            tidy(folder)


def _blocks(options: Options, report: Verification) -> int:
    available = int(report.packet["blocks"])
    wanted = available if options.blocks is None else options.blocks
    if not 1 <= wanted <= available:
        raise InputError(
            f"--blocks must be between 1 and {available}, the blocks of this packet, not {wanted}"
        )
    return wanted


def check_target(report: Verification) -> None:
    """Raise SetupError unless the packet's target is installed here."""
    target = report.documents[layout.RUN_LOCK]["target"]
    if target not in (known := registry.names()):
        raise SetupError(
            f"the packet runs the target '{target}', which nothing installed here offers",
            details=[f"there are: {', '.join(known)}"],
        )


def _prepare(
    archive: Archive,
    report: Verification,
    found: Mapping[str, Mapping[str, Path]],
    folder: Path,
    blocks: int,
    nonce: bytes,
) -> dict[str, Any]:
    """Lay out public part, models, workloads and the task; return this machine's identity."""
    extract.public_part(archive, manifest.read(archive, report.form), folder / "packet")
    places = {ref: lay_out(report, ref, files, folder) for ref, files in found.items()}
    configs = {arm: placed(config, places) for arm, config in report.arms.items()}
    references = {str(config["model"]) for config in report.arms.values()}
    (place,) = {places[reference] for reference in references}
    model = {f"{part}_sha256": digest for part, digest in sorted(catalogue.fingerprint(place).items())}
    identity = environment.common_identity(code_identity.identify().as_dict(), model)
    run_lock = report.documents[layout.RUN_LOCK]
    primary = report.documents[layout.PREREG]["primary"]
    task = {
        "packet_id": report.packet["packet_id"],
        "claim_id": report.packet["claim_id"],
        "target": run_lock["target"],
        "concurrency": run_lock["workload"]["concurrency"],
        "request_timeout_s": float(run_lock["workload"]["request_timeout_s"]),
        "run_deadline_s": float(run_lock["run_deadline_s"]),
        "metric": primary["metric"],
        "statistic": primary["statistic"],
        "arms": configs,
        "environment": identity,
        "roofs": (roofline.known(open_store()) or {}).get("rates"),
        "runs": schedule.runs(report.root, nonce, blocks, configs),
        "workloads": [_workload(archive, layout.input_path(b), folder) for b in range(blocks)],
        "hold_together": True,
        "warmup": _workload(archive, layout.WARMUP, folder),
    }
    atomic.write_json(folder / TASK, task)
    return identity


def lay_out(report: Verification, reference: str, files: Mapping[str, Path], folder: Path) -> Path:
    """Lay a model out under `folder`/models; returns its folder. Raises PacketError E_MODEL_MISSING."""
    lock = report.models[reference]
    place = models.lay_out(lock, files, folder / "models" / lock.sha256[:16])
    if catalogue.fingerprint(place)["model"] != lock.sha256:
        raise PacketError(
            "E_MODEL_MISSING", "the files found do not make up the locked model", path=lock.sha256
        )
    return place


def placed(config: Mapping[str, Any], places: Mapping[str, Path]) -> dict[str, Any]:
    """An arm's configuration with the folders of its models in place of their digests."""
    found = dict(config)
    for path in MODEL_PATHS:
        if found.get(path) is not None:
            found[path] = str(places[found[path]])
    return found


def _workload(archive: Archive, path: str, folder: Path) -> dict[str, str]:
    target = folder / "workloads" / f"{Path(path).stem}.parquet"
    return {"sha256": inputs.unpack(archive, path, target), "path": str(target)}


def _blind_record(found: Measured) -> dict[str, Any]:
    """Everything that can be said without the seal."""
    report = found.report
    values = judgement.per_block(found.estimates["runs"], found.blocks)
    return {
        "schema": SCHEMA,
        "packet_id": report.packet["packet_id"],
        "root": report.root,
        "blocks": found.blocks,
        "metric": report.documents[layout.PREREG]["primary"],
        "per_block": values,
        "pairs": judgement.pairs(values),
        "failed_attempts": found.estimates["failed"],
        "verdict": agreement.BLIND,
        "reason": "the author's results are sealed, so there is nothing to compare with yet",
        "note": judgement.BLIND_NOTE,
    }


def _record(found: Measured) -> dict[str, Any]:
    """Everything about the replay of an open packet; `opened` and what follows needs the arm map."""
    report, estimates = found.report, found.estimates
    results, prereg = report.documents[layout.RESULTS], report.documents[layout.PREREG]
    values = judgement.per_block(estimates["runs"], found.blocks)
    hardware = surroundings.hardware_class(found.identity)
    same_hardware = hardware == report.documents[layout.SCOPE]["hardware"]
    answer, table = judgement.judge(results, values, prereg["consistency_band"], same_hardware=same_hardware)
    different = _differences(report, found.identity, estimates["runs"], same_hardware, hardware)
    return {
        "schema": SCHEMA,
        "packet_id": report.packet["packet_id"],
        "root": report.root,
        "blocks": found.blocks,
        "metric": prereg["primary"],
        "per_block": values,
        "pairs": judgement.pairs(values),
        "failed_attempts": estimates["failed"],
        "opened": results["arms"],
        "ratios": table,
        "outputs": judgement.outputs_equal(results, estimates["runs"]),
        "differences": different,
        "absolute_numbers_comparable": not different,
        "author_per_block": {arm: results["per_block"][name] for arm, name in results["arms"].items()},
        "consistency_band": prereg["consistency_band"],
        "verdict": answer.verdict,
        "reason": answer.reason,
        "difference": {"log": answer.difference, "low": answer.low, "high": answer.high},
        "note": judgement.NOTE,
    }


def _differences(
    report: Verification,
    identity: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    same_hardware: bool,
    hardware: str,
) -> list[str]:
    locked = report.documents[layout.ENVIRONMENT_LOCK]
    found = code_lock.differences(report.documents[layout.CODE_LOCK])
    python = (locked["python"], str(identity.get("python.version")))
    found += surroundings.differences(locked["packages"], surroundings.libraries(identity), python)
    ran = [run.get(surroundings.KERNEL_PATH) for run in runs]
    found += surroundings.kernel_difference(report.documents[layout.ENVIRONMENT]["id"], ran)
    if not same_hardware:
        there = report.documents[layout.SCOPE]["hardware"]
        found.append(f"hardware: {there} there, {hardware} here; only ratios compare")
    return found


def tidy(folder: Path, kept: tuple[str, ...] = ()) -> None:
    """Remove what a replay needed and nobody needs afterwards, but for `kept`."""
    for name in set(_MEASURED) - set(kept):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def read_nonce(text: str) -> bytes:
    """A nonce from hex digits. Raises InputError."""
    try:
        nonce = bytes.fromhex(text)
    except ValueError:
        raise InputError(f"'{text}' is no nonce; give hex digits") from None
    if len(nonce) != NONCE_BYTES:
        raise InputError(f"a nonce has {2 * NONCE_BYTES} hex digits, not {len(text)}")
    return nonce
