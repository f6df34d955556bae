"""Preregistration: everything a study will do and how it will be judged, sealed before its first run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.errors import InputError
from counterproof.plan import checks, locate, overrides, predict, probes
from counterproof.plan.compose import Composition, compose
from counterproof.plan.factor import FactorDiff, effective_exceptions, single_variable
from counterproof.plan.schedule import schedule
from counterproof.plan.schema import ExperimentConfig, FactorConfig
from counterproof.record import environment
from counterproof.record.code_identity import CodeIdentity
from counterproof.record.journal import now_utc
from counterproof.record.verify import PLAN_SCHEMA
from counterproof.run.targets.protocol import Planner
from counterproof.workload.build import StudyWorkloads, held_out_seed

RULE = "counterproof-rule/1"
RECORDED = ("engine.", "workload.", "server.", "target")


@dataclass(frozen=True)
class Arms:
    """The compositions of a study's arms, the accepted difference (None in a calibration), and the sabotaged
    candidate (None where its feature is none of the engine's)."""

    compositions: dict[str, Composition]
    diff: FactorDiff | None
    sabotaged: Composition | None = None

    @property
    def baseline(self) -> Composition:
        return self.compositions["baseline"]


def compose_arms(
    experiment: str, tokens: Sequence[str], candidate: Sequence[str] = (), folder: Path | None = None
) -> Arms:
    """Compose every arm and hold the candidate to the single-variable rule.

    tokens     the user's overrides, for all arms
    candidate  overrides that make the candidate, instead of the experiment's own

    Raises InputError or RefusedError.
    """
    place = folder or locate.experiments_folder()
    locate.check_experiment(place, experiment)
    given = overrides.check(tokens, place)
    probe = compose(experiment, [token.text for token in given], place)
    factor = probe.config.factor
    if factor is None:
        if candidate:
            raise InputError(f"{experiment} is a calibration: it compares equal arms and takes no candidate")
        base = given
    else:
        _refuse_factor(factor, given)
        base = [*given, *overrides.check([_factor_token(factor, factor.baseline)], place)]
    texts = [token.text for token in base]
    arms = {"baseline": compose(experiment, texts, place)}
    diff = None
    if factor is not None:
        chosen = list(candidate) or [_factor_token(factor, factor.candidate)]
        arms["candidate"] = compose(
            experiment, overrides.replace(base, overrides.check(chosen, place)), place
        )
        diff = single_variable(arms["baseline"], arms["candidate"], factor)
    arms["again"] = arms["baseline"]
    delay = overrides.render("engine.inject.step_delay_us", probe.config.study.slowed_delay_us)
    arms["slowed"] = compose(experiment, overrides.replace(base, overrides.check([delay], place)), place)
    return Arms(arms, diff, _sabotaged(experiment, arms, diff, place))


def _sabotaged(
    experiment: str, arms: dict[str, Composition], diff: FactorDiff | None, place: Path
) -> Composition | None:
    """The candidate as it is configured, with its feature off under the hood; None where no engine can be told."""
    pairs = probes.sabotage_of(diff)
    if pairs is None:
        return None
    token = overrides.check([overrides.render(probes.SABOTAGE_PATH, pairs)], place)
    own = overrides.check(arms["candidate"].tokens, place)
    return compose(experiment, overrides.replace(own, token), place)


def build(
    study: str,
    arms: Arms,
    workloads: StudyWorkloads,
    workload_facts: dict[str, Any],
    planner: Planner,
    code: CodeIdentity,
    *,
    exploratory: bool,
    candidates_tried: int,
    roofline: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of plan.json. `workload_facts`: hashes of the sealed workloads and of their files; `roofline`:
    what this machine was measured to be able to do."""
    config = arms.baseline.config
    checks.check(config, exploratory=exploratory)
    names = list(arms.compositions)
    return {
        "schema": PLAN_SCHEMA,
        "study": study,
        "experiment": arms.baseline.experiment,
        "question": config.question,
        "created_utc": now_utc(),
        "exploratory": exploratory,
        "calibration": config.calibration,
        "target": config.target,
        "factor": _factor(arms),
        "arms": {name: _arm(arms.compositions[name]) for name in names},
        "composed": {name: arms.compositions[name].text for name in names},
        "probes": _probes(arms, workload_facts) if config.study.probes else None,
        "faults": config.study.faults,
        "diff": [difference.as_dict() for difference in arms.diff.changed] if arms.diff else [],
        "fan_out": [difference.as_dict() for difference in arms.diff.fanned] if arms.diff else [],
        "primary": dataclasses.asdict(config.primary),
        "guardrails": _guardrails(config, workloads, planner),
        "blocks": config.study.blocks,
        "reserve_blocks": config.study.reserve_blocks,
        "schedule": schedule(names, config.study.blocks + config.study.reserve_blocks, config.study.seed),
        "seed": config.study.seed,
        "run_deadline_s": config.study.run_deadline_s,
        "attempts": config.study.attempts,
        "workload": {**_workload(config), **workload_facts},
        "slowed_delay_us": config.study.slowed_delay_us,
        "aa_band": config.study.aa_band,
        "candidates_tried": candidates_tried,
        "roofline": roofline,
        "code": code.as_dict(),
        "environment": environment.common_identity(code.as_dict(), planner.model_identity()),
        "rule": RULE,
    }


def _probes(arms: Arms, workload_facts: dict[str, Any]) -> dict[str, Any]:
    """The runs that try to overturn the result: which arms, their requests, and the sabotaged arm."""
    names = [name for name in ("baseline", "candidate") if name in arms.compositions]
    sabotaged = arms.sabotaged
    own = (
        None
        if sabotaged is None
        else {**_arm(sabotaged), "composed": sabotaged.text, "effective": probes.SABOTAGE_EFFECTIVE}
    )
    return {
        "arms": names + ([] if own is None else [probes.SABOTAGE]),
        "sha256": workload_facts["probe_sha256"],
        "duplicates_sha256": workload_facts["duplicates_sha256"],
        "seed": held_out_seed(arms.baseline.config.study.seed),
        probes.SABOTAGE: own,
    }


def _refuse_factor(factor: FactorConfig, given: Sequence[overrides.Token]) -> None:
    own = {factor.path, *factor.bundle}
    if clash := [token.text for token in given if token.key in own]:
        raise InputError(
            f"{factor.path} is what this experiment varies, so it cannot be set for all arms",
            details=[*clash, "to try another candidate: --candidate path=value"],
        )


def _factor_token(factor: FactorConfig, value: Any) -> str:
    return f"{factor.path}={value}" if factor.kind == "group" else overrides.render(factor.path, value)


def _arm(composition: Composition) -> dict[str, Any]:
    recorded = {k: v for k, v in composition.resolved.items() if k.startswith(RECORDED)}
    return {"overrides": list(composition.tokens), "config": recorded}


def _factor(arms: Arms) -> dict[str, Any] | None:
    factor, diff = arms.baseline.config.factor, arms.diff
    if factor is None or diff is None:
        return None
    values = {difference.path: difference for difference in diff.changed}
    own = values.get(factor.path)
    return {
        "path": factor.path,
        "kind": factor.kind,
        "baseline": own.baseline if own else factor.baseline,
        "candidate": own.candidate if own else factor.candidate,
        "lossless": factor.lossless,
        "bottleneck": factor.bottleneck,
        "attacks": factor.attacks or None,
        "bundle": list(factor.bundle),
        "moves": {
            "effective": effective_exceptions(factor, diff),
            "environment": list(factor.moves.environment),
            "model": list(factor.moves.model),
        },
    }


def _guardrails(
    config: ExperimentConfig, workloads: StudyWorkloads, planner: Planner
) -> list[dict[str, Any]]:
    result = []
    for rail in config.guardrails:
        entry: dict[str, Any] = dataclasses.asdict(rail)
        del entry["predict"], entry["reason"]
        if rail.predict == "kv_bytes":
            price = predict.kv_bytes(config, workloads, planner.kv_bytes_per_token())
            entry["registered"] = {**price, "reason": rail.reason}
        result.append(entry)
    return result


def _workload(config: ExperimentConfig) -> dict[str, Any]:
    load = dataclasses.asdict(config.workload)
    # Paths of this machine; what they held is in the sealed requests and, for a trace, in its sha256.
    del load["file"], load["trace"]
    return {"name": config.workload.builder, **load}
