"""`packet build`: a deterministic packet from a sealed, verified, complete study.

Equal study and equal keys give equal bytes. Everything public is written by allow-list and then linted as it
will be shipped; the packet is verified by the reader before it is handed out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.errors import InputError
from counterproof.measure.load import StudyData, load_study
from counterproof.measure.metrics import METRICS
from counterproof.record.canonical import sha256_bytes, sha256_file
from counterproof.workload import sealed
from counterproof.workload.sealed import SealedRequest
from counterproof_review.packet import (
    archive,
    arms,
    author,
    canonical,
    inputs,
    labels,
    layout,
    leaks,
    manifest,
    models,
    public,
    sealing,
    servers,
    signature,
)
from counterproof_review.packet import documents as documents_of_format
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.labels import PacketKeys
from counterproof_review.packet.models import ModelLock
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.sealing import Sealing
from counterproof_review.packet.verify import Verification, verify
from intaglio.config import Scalar
from intaglio.models import catalogue

_ENGINE = "engine."


@dataclass(frozen=True)
class Built:
    """A packet that was written and verified."""

    path: Path
    key_path: Path
    packet_id: str
    root: str
    sha256: str
    verification: Verification
    evidence_valid: bool | None  # by the study's own comparison; None before it was compared
    salt_share: float | None = None  # the known delay over the baseline's median step


def build(
    folder: Path, *, out: Path | None = None, keys: PacketKeys | None = None, sealed: Sealing | None = None
) -> Built:
    """Build the packet of the study in `folder`; by default as `packets/<id>.rep.zip` inside it.

    `keys`: fresh ones when None. They are kept beside the study (`packets/<id>.key.json`, mode 0600), never in
    the packet. `sealed`: build the sealed form, whose secret is kept in the author's key folder instead. Raises InputError for a study without anything to replicate, EvidenceError for one that was
    tampered with, PacketError E_LEAK or E_STUDY.
    """
    study = load_study(folder)
    _check_study(study)
    keys = sealed.secrets.packet if sealed else keys or labels.fresh_keys(study.arms)
    place = folder / "packets"
    place.mkdir(exist_ok=True)
    target = out or place / f"{keys.packet_id}.rep.zip"
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {target.parent} to write the packet into")
    report = Verification()
    with tempfile.TemporaryDirectory(prefix="packet-") as scratch:
        files, valid = _files(study, keys, Path(scratch), sealed)
        unverified = target.with_name(f".{target.name}.unverified")
        try:
            digest = archive.write(unverified, files)
            with Archive.open(unverified) as opened:
                verify(opened, report)
            unverified.replace(target)
        finally:
            unverified.unlink(missing_ok=True)
    if sealed:
        key_path = sealing.write_secrets(sealed.secrets)
    else:
        key_path = place / f"{keys.packet_id}.key.json"
        labels.write_keys(key_path, keys)
    return Built(
        target, key_path, keys.packet_id, report.root, digest, report, valid, author.salt_share(study)
    )


def _check_study(study: StudyData) -> None:
    if study.plan.get("calibration") or "candidate" not in study.arms:
        raise InputError("a calibration claims nothing, so there is nothing to replicate")
    factor = study.plan["factor"]
    if not any(path.startswith(_ENGINE) for path in (factor["path"], *factor.get("bundle", ()))):
        raise InputError(f"{factor['path']} is no part of the engine, and this version packs engines only")
    servers.check(study.plan)
    if not study.final:
        done, planned = len(study.complete_blocks), study.planned_blocks
        raise InputError(
            f"{done} of {planned} blocks are complete, and a packet holds a whole study",
            details=[f"counterproof resume {study.folder.name}"],
        )


def _files(
    study: StudyData, keys: PacketKeys, scratch: Path, sealed: Sealing | None
) -> tuple[dict[str, bytes | Path], bool | None]:
    """Every member, and whether the study's evidence is valid."""
    opaque = labels.opaque_names(keys, study.arms)
    loads = [_inputs(study, block) for block in study.complete_blocks]
    warmup = _warmup(study)
    documents = _public(study, keys, opaque, loads, warmup, sealed)
    _refuse_leaks(study, documents)
    rows = author.write_rows(study, opaque, scratch / "rows")
    results = author.document(study, opaque, rows)
    files: dict[str, bytes | Path] = {p: canonical.encode(d, p) for p, d in documents.items()}
    files[layout.WARMUP] = inputs.to_lines(warmup)
    files |= {layout.input_path(b): inputs.to_lines(requests) for b, requests in enumerate(loads)}
    if sealed is None:
        files[layout.RESULTS] = canonical.encode(results, layout.RESULTS)
        files[layout.RESULT_ROWS] = scratch / "rows"
        files[layout.MANIFEST] = manifest.build(files)
        return files, results["evidence_valid"]
    hidden = sealing.content(results, sealed, _facts(study), sha256_file(scratch / "rows"))
    hidden["regime"] = author.regime(study)
    document = sealing.sealed_bytes(sealed, hidden)
    files[layout.SEALED] = document
    listed = files[layout.MANIFEST] = manifest.build(files)
    packet = sha256_bytes(canonical.encode(documents[layout.PACKET]))
    root = manifest.root(listed)
    files[layout.SIGNATURE] = signature.sign(sealed.author, keys.packet_id, packet, root, document)
    return files, results["evidence_valid"]


def _public(
    study: StudyData,
    keys: PacketKeys,
    opaque: Mapping[str, str],
    loads: list[list[SealedRequest]],
    warmup: list[SealedRequest],
    sealed: Sealing | None,
) -> dict[str, Any]:
    """The documents of the public part, each by allow-list."""
    form = layout.SEALED_FORM if sealed else layout.OPEN
    lock = _model_lock(study)
    configs = {arm: _engine(study, arm, lock) for arm in study.arms}
    plan, plan_sha256 = study.plan, study.verified.plan_sha256
    metric = METRICS.get(plan["primary"]["metric"])
    counts = [len(block) for block in loads]
    supersedes = sealed.supersedes if sealed else None
    documents = {
        layout.PACKET: public.packet(
            keys.packet_id, plan_sha256, len(opaque), counts, len(warmup), form, supersedes
        ),
        layout.PREREG: public.prereg(plan, plan_sha256, metric.unit if metric else "", len(loads)),
        layout.SCOPE: public.scope(plan, configs["baseline"], lock, loads),
        layout.SCHEDULE: public.schedule(len(loads)),
        layout.RUN_LOCK: public.run_lock(plan),
        layout.ENVIRONMENT_LOCK: public.libraries(plan),
        layout.CODE_LOCK: public.code(plan),
        layout.MODELS_LOCK: public.models_lock([lock]),
        layout.NOISE: public.noise(plan, author.ratios(author.per_block(study))["again"]),
        layout.ENVIRONMENT: public.environment(plan, author.kernel_paths(study)),
        layout.LINEAGE: public.lineage(plan_sha256),
    }
    files = {opaque[arm]: arms.to_document(config) for arm, config in configs.items()}
    if sealed:
        documents[layout.CHALLENGE] = public.challenge_space(documents[layout.SCOPE])
        files = arms.padded(files)
    return documents | {layout.arm_path(name): document for name, document in files.items()}


def _facts(study: StudyData) -> dict[str, Any]:
    """What the author says in words: sealed, since it names what is hoped for."""
    plan = study.plan
    mechanism = plan.get("hypothesis") or plan.get("mechanism") or plan["factor"]["path"]
    return {"study": plan["study"], "experiment": plan.get("experiment", ""), "mechanism": mechanism}


def _engine(study: StudyData, arm: str, lock: ModelLock) -> dict[str, Scalar]:
    """The arm's engine configuration, with its model named by digest."""
    config: Mapping[str, Scalar] = study.plan["arms"][arm]["config"]
    engine = {k.removeprefix(_ENGINE): v for k, v in config.items() if k.startswith(_ENGINE)}
    if engine.get("speculation.draft_model") is not None:
        raise InputError("a study with a draft model cannot be packed by this version")
    return arms.resolve({**engine, "model": lock.reference})


def _model_lock(study: StudyData) -> ModelLock:
    names = {str(arm["config"]["engine.model"]) for arm in study.plan["arms"].values()}
    if len(names) != 1:
        raise InputError("the arms run different models, which this version cannot pack")
    (name,) = names
    lock = models.lock_folder(catalogue.resolve(name, download=False), name)
    measured = (study.plan.get("environment") or {}).get("model.model_sha256")
    if measured is not None and measured != lock.sha256:
        raise PacketError(
            "E_STUDY",
            "the model here is not the one that was measured",
            details=[f"measured {measured}", f"found {lock.sha256}"],
        )
    return lock


def _inputs(study: StudyData, block: int) -> list[SealedRequest]:
    registered = study.plan["workload"]["sha256_by_block"][block]
    return sealed.read(study.verified.paths.workload(block), registered)


def _warmup(study: StudyData) -> list[SealedRequest]:
    path = study.verified.paths.workloads / "warmup.parquet"
    return sealed.read(path, study.plan["workload"].get("warmup_sha256")) if path.is_file() else []


def _refuse_leaks(study: StudyData, documents: Mapping[str, Any]) -> None:
    names = {study.folder.name, str(study.plan["study"])}
    names |= {run.name for run in (*study.runs.values(), *study.equivalence.values())}
    paths = [*documents[layout.ENVIRONMENT_LOCK]["packages"], *study.plan["arms"]["baseline"]["config"]]
    paths += [*public.SENTENCES, *documents_of_format.own_texts()]
    names |= leaks.checkout_words(study.folder) | leaks.checkout_words(Path(__file__).parent)
    lint = leaks.Lint(words=leaks.machine_words() | names, known=leaks.vocabulary(paths))
    found = leaks.scan(lint, documents)
    if found:
        raise PacketError(
            "E_LEAK", f"the public part would tell: {found[0]}", details=[str(leak) for leak in found[1:]]
        )
