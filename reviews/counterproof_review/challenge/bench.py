"""The place where a challenge measures: packet verified, model found, network off, loads written, nothing run yet.

Everything that a replay lays out is laid out here the same way; what differs are the loads, which nobody declared.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.errors import InputError
from counterproof.record import code_identity, environment
from counterproof.run.targets import registry
from counterproof.workload import sealed
from counterproof.workload.sealed import SealedRequest
from counterproof_review.challenge.claim import Claim
from counterproof_review.challenge.texts import Texts
from counterproof_review.packet import layout, models, offline, replay, surroundings
from counterproof_review.packet.offline import Surroundings
from counterproof_review.packet.verify import Verification
from intaglio.config import from_flat
from intaglio.models import catalogue

WORK = "work"


@dataclass
class Bench:
    """folder      of the search; `work` below it is made anew at every start
    configs     engine configuration of every opaque arm, the model's folder in place of its digest
    identity    of this machine
    """

    folder: Path
    report: Verification
    claim: Claim
    configs: Mapping[str, dict[str, Any]]
    identity: dict[str, Any]
    around: Surroundings
    texts: Texts
    network: str
    written: int = 0

    @property
    def work(self) -> Path:
        """Where loads and raw results lie while they are needed."""
        return self.folder / WORK

    @property
    def lock(self) -> dict[str, Any]:
        """run.lock.json: target, client, deadline."""
        found: dict[str, Any] = self.report.documents[layout.RUN_LOCK]
        return found

    @property
    def timeout_s(self) -> float:
        """After how long a request is given up."""
        return float(self.lock["workload"]["request_timeout_s"])

    def config(self, role: str, mode: str | None = None) -> dict[str, Any]:
        """An arm's engine configuration by role; `mode`: other numerics than it declares."""
        found = dict(self.configs[self.claim.arms[role]])
        return found if mode is None else {**found, "numerics.mode": mode}

    def write(self, requests: Sequence[SealedRequest], folder: Path | None = None) -> dict[str, str]:
        """Write a load; returns {"path", "sha256"}."""
        self.written += 1
        path = (folder or self.work / "loads") / f"{self.written:06d}.parquet"
        return {"sha256": sealed.write(path, requests), "path": str(path)}


def prepare(
    report: Verification, claim: Claim, folder: Path, roots: Sequence[Path], say: Callable[[str], None]
) -> Bench:
    """Lay out model and surroundings for a verified packet.

    Raises PacketError E_MODEL_MISSING, SetupError for a target that is not here, InputError when the network stays open.
    """
    replay.check_target(report)
    found = models.find(report.models.values(), list(roots) or models.default_roots())
    folder = folder.resolve()
    work = folder / WORK
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, mode=0o700)
    places = {ref: replay.lay_out(report, ref, files, work) for ref, files in found.items()}
    configs = {arm: replay.placed(config, places) for arm, config in report.arms.items()}
    (place,) = places.values()
    model = {f"{part}_sha256": digest for part, digest in sorted(catalogue.fingerprint(place).items())}
    identity = environment.common_identity(code_identity.identify().as_dict(), model)
    around = offline.prepare(work, work / "models")
    network = offline.probe(around)
    if network == "open":
        raise InputError("this machine can still be left although the network should be off")
    say(f"network off ({network}); hardware: {surroundings.hardware_class(identity)}")
    engine = from_flat(configs[claim.arms["baseline"]])
    planner = registry.find(report.documents[layout.RUN_LOCK]["target"]).planner(engine)
    texts = Texts(planner.encode, vocabulary(place))
    return Bench(folder, report, claim, configs, identity, around, texts, network)


def vocabulary(model: Path) -> int:
    """How many token ids a model knows. Raises InputError where its config.json does not say."""
    found = catalogue.read_json(model / catalogue.CONFIG).get("vocab_size")
    if type(found) is not int or found < 1:
        raise InputError("the model's config.json states no vocab_size, so no prompts can be drawn from it")
    return found


def clear(folder: Path) -> None:
    """Remove what measuring needed; journal, header and report stay."""
    shutil.rmtree(folder / WORK, ignore_errors=True)
