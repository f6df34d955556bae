"""The comparison of a sealed study: its numbers against a few independent lines of pandas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from counterproof.errors import EvidenceError
from counterproof.measure.compare import compare
from counterproof.measure.load import load_study
from counterproof.record import canonical

SMALL = {"new_tokens": 8, "prompt_tokens": 20}


@pytest.fixture(scope="module")
def study(synthetic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("compare")
    return synthetic.build(store, synthetic.StudyModel(killed=((2, "candidate"),), **SMALL))


@pytest.fixture(scope="module")
def comparison(study: Path) -> dict[str, Any]:
    return compare(load_study(study))


def requests(study: Path, block: int, arm: str) -> pd.DataFrame:
    (folder,) = [p for p in (study / "runs").glob(f"{block:02d}-{arm}-*") if (p / "manifest.json").is_file()]
    return pd.read_parquet(folder / "requests.parquet")


def upper_p50(values: pd.Series) -> float:
    return float(np.sort(values.to_numpy())[math.ceil(len(values) * 0.5) - 1])


def test_tpot_equals_an_independent_recomputation(study: Path, comparison: dict[str, Any]) -> None:
    d = []
    for block in range(6):
        by_arm = {}
        for arm in ("baseline", "candidate"):
            r = requests(study, block, arm)
            tpot = (r["last_token_ns"] - r["first_token_ns"]) / (r["output_tokens"] - 1) / 1e6
            by_arm[arm] = upper_p50(tpot)
            assert comparison["metrics"]["tpot_ms"]["arms"][arm]["per_block"][block] == pytest.approx(
                by_arm[arm]
            )
        d.append(math.log(by_arm["candidate"] / by_arm["baseline"]))
    found = comparison["metrics"]["tpot_ms"]["effects"]["candidate"]
    half = stats.t.ppf(0.975, 5) * np.std(d, ddof=1) / math.sqrt(6)
    assert found["d"] == pytest.approx(d)
    assert found["ratio"] == pytest.approx(math.exp(np.mean(d)))
    assert found["ci_low"] == pytest.approx(math.exp(np.mean(d) - half))
    assert found["ci_high"] == pytest.approx(math.exp(np.mean(d) + half))
    assert found["p_value"] == pytest.approx(stats.ttest_1samp(d, 0.0).pvalue)


def test_other_metrics_equal_an_independent_recomputation(study: Path, comparison: dict[str, Any]) -> None:
    metrics = comparison["metrics"]
    for block in range(6):
        r = requests(study, block, "candidate")
        ttft = (r["first_token_ns"] - r["scheduled_ns"]) / 1e6
        e2e = (r["done_ns"] - r["scheduled_ns"]) / 1e6
        elapsed = (r["done_ns"].max() - r["scheduled_ns"].min()) / 1e9
        expected = {
            "ttft_ms": upper_p50(ttft),
            "e2e_ms": upper_p50(e2e),
            "e2e_ms.mean": e2e.mean(),
            "throughput_tok_s": r["output_tokens"].sum() / elapsed,
            "output_tokens": r["output_tokens"].sum(),
            "error_rate": 0.0,
        }
        for key, value in expected.items():
            assert metrics[key]["arms"]["candidate"]["per_block"][block] == pytest.approx(value), key


def test_noise_floor_equals_an_independent_recomputation(study: Path, comparison: dict[str, Any]) -> None:
    d = []
    for block in range(6):
        value = {}
        for arm in ("baseline", "again"):
            r = requests(study, block, arm)
            value[arm] = upper_p50((r["first_token_ns"] - r["scheduled_ns"]) / 1e6)
        d.append(math.log(value["again"] / value["baseline"]))
    floor = abs(np.mean(d)) + stats.t.ppf(0.975, 5) * np.std(d, ddof=1) / math.sqrt(6)
    assert comparison["metrics"]["ttft_ms"]["noise_floor"] == pytest.approx(math.expm1(floor))


def test_below_the_floor_a_percentile_is_null_with_its_reason(comparison: dict[str, Any]) -> None:
    entry = comparison["metrics"]["ttft_ms.p90"]
    assert entry["arms"]["baseline"]["per_block"] == [None] * 6
    assert "needs 64 samples, has 12" in entry["arms"]["baseline"]["reason"]
    assert (entry["verdict"], entry["noise_floor"], entry["mde"]) == ("not measured", None, None)


def test_the_true_effect_is_found_and_attributed(comparison: dict[str, Any]) -> None:
    primary = comparison["metrics"]["tpot_ms"]
    assert primary["verdict"] == "gain"
    assert (
        primary["effects"]["candidate"]["ci_low"] < 0.51 < primary["effects"]["candidate"]["ci_high"] + 0.01
    )
    assert primary["noise_floor"] < 0.06
    assert 0 < primary["mde"] < 0.12
    assert primary["preregistered"]
    stages = comparison["stages"]
    assert stages["resolved"]
    top = min(stages["waterfall"], key=lambda bar: bar["delta_ms"])
    assert (top["stage"], top["phase"]) == ("compute", "decode")
    summed = sum(bar["delta_ms"] for bar in stages["waterfall"]) + stages["residual_ms"]
    assert summed == pytest.approx(stages["total_ms"])


def test_only_registered_intervals_can_claim(comparison: dict[str, Any]) -> None:
    judged = {key for key, e in comparison["metrics"].items() if e["judged"] == "interval"}
    assert judged == {"tpot_ms", "ttft_ms", "throughput_tok_s", "startup_ms"}
    claimed = {key for key, e in comparison["metrics"].items() if e["verdict"] in ("gain", "loss")}
    assert claimed == {"tpot_ms", "throughput_tok_s"}
    smallest = min(comparison["metrics"][key]["effects"]["candidate"]["p_value"] for key in judged)
    assert min(comparison["metrics"][key]["p_holm"] for key in judged) == pytest.approx(4 * smallest)
    assert comparison["metrics"]["e2e_ms"]["p_holm"] is None  # as large an effect, but nobody registered it


def test_lost_attempts_are_kept_and_never_counted(comparison: dict[str, Any]) -> None:
    assert comparison["lost_attempts"] == [{"run": "02-candidate-1", "kind": "run_lost", "reason": "killed"}]
    counted = [run["run"] for run in comparison["runs"]]
    assert "02-candidate-1" not in counted
    assert "02-candidate-2" in counted
    assert len(counted) == 26


def test_evidence_is_valid_and_every_check_is_there(comparison: dict[str, Any]) -> None:
    assert comparison["valid"] is True
    assert {c["check"]: c["passed"] for c in comparison["validity"]} == dict.fromkeys(
        (
            "samples",
            "clock",
            "workload",
            "one_variable",
            "arms_differ",
            "a_a",
            "slowed_recovered",
            "output_length",
            "littles_law",
            "client_queue",
            "token_invariants",
            "cold_cache",
            "outputs",
            "equivalence",
        ),
        True,
    ) | {"client": None, "token_counts": None}  # a closed loop in the engine's own process


def test_kv_memory_is_what_the_arithmetic_predicts(comparison: dict[str, Any]) -> None:
    arms = comparison["memory"]["arms"]
    assert arms["candidate"]["predicted_kv_bytes"] == arms["candidate"]["measured_kv_bytes"]
    assert min(arms["candidate"]["measured_kv_bytes"]) > 0
    assert arms["baseline"]["measured_kv_bytes"] == [0] * 6
    entry = comparison["metrics"]["kv_bytes_peak"]
    assert entry["effects"]["candidate"]["ratio"] is None
    assert entry["effects"]["candidate"]["difference"]["mean"] > 0


def test_no_cell_of_the_cost_matrix_is_blank(comparison: dict[str, Any]) -> None:
    assert len(comparison["cost"]) == 35
    for cell in comparison["cost"]:
        if cell["status"] == "measured":
            assert cell["baseline"] is not None and cell["candidate"] is not None
        else:
            assert cell["status"] == "not measured"
            assert cell["reason"]
    quality = next(c for c in comparison["cost"] if (c["stage"], c["resource"]) == ("output", "quality"))
    assert quality["candidate"] == 1.0


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


def test_nothing_written_is_non_finite(comparison: dict[str, Any]) -> None:
    found = list(numbers(comparison))
    assert len(found) > 500
    assert all(math.isfinite(v) for v in found)
    assert json.loads(canonical.dumps(comparison)) == json.loads(json.dumps(comparison))


def test_comparison_is_the_same_every_time(study: Path, comparison: dict[str, Any]) -> None:
    assert canonical.dumps(compare(load_study(study))) == canonical.dumps(comparison)


def test_a_tampered_record_is_refused_and_named(build_study: Callable[..., Path]) -> None:
    folder = build_study(blocks=1, **SMALL)
    path = folder / "runs" / "00-again-1" / "requests.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(EvidenceError, match=r"00-again-1/requests\.parquet was changed"):
        load_study(folder)


def test_a_calibration_has_no_candidate_and_no_claim(build_study: Callable[..., Path]) -> None:
    found = compare(load_study(build_study(calibration=True, **SMALL)))
    assert found["valid"] is True
    assert {e["verdict"] for e in found["metrics"].values()} == {"not measured"}
    assert found["metrics"]["tpot_ms"]["noise_floor"] is not None
    assert found["stages"]["resolved"] is False
    assert all(cell["status"] == "not measured" for cell in found["cost"])
    assert found["hard_limits"] == []


def test_an_exploratory_study_never_claims(build_study: Callable[..., Path]) -> None:
    found = compare(load_study(build_study(exploratory=True, **SMALL)))
    entry = found["metrics"]["tpot_ms"]
    assert entry["verdict"] == "no claim"
    assert entry["reason"].startswith("an exploratory study can never claim")
    assert found["valid"] is True
