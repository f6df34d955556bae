"""Kernels and rounding of a replay: another kernel path is named, and what rounding does is measured where it runs."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from counterproof.record.canonical import sha256_file
from counterproof.record.store import RunKey
from counterproof.workload import sealed
from counterproof_review.packet import executor, offline, surroundings

ARM = "aaaaaaaa"


@pytest.mark.parametrize(
    ("there", "here", "says"),
    [
        ("native-avx512", ["native-avx512", "native-avx512"], None),
        ("native-avx512", ["native-avx2"], "kernels: native-avx512 there, native-avx2 here"),
        ("native-avx512", ["torch"], "kernels: native-avx512 there, torch here"),
        ("compiled, native-avx2", ["native-avx2", "compiled"], None),
        ("compiled, native-avx2", ["native-avx2"], "kernels: compiled, native-avx2 there, native-avx2 here"),
        ("native-avx2", [None], "kernels: native-avx2 there, none named here"),
        (None, ["native-avx2"], "kernels: the packet does not say which ran there, native-avx2 here"),
        (None, [None], None),
    ],
)
def test_another_kernel_path_is_a_difference(
    there: str | None, here: list[str | None], says: str | None
) -> None:
    found = surroundings.kernel_difference({} if there is None else {"kernel_path": there}, here)
    assert (found == []) if says is None else (len(found) == 1 and found[0].startswith(says)), found


@pytest.mark.slow
def test_rounding_is_measured_in_fast_mode_and_there_is_none_in_invariant_mode(
    support: ModuleType, tiny_model: Path, tmp_path: Path
) -> None:
    study = support.build(tmp_path / "store", tiny_model, prompt_tokens=24, new_tokens=6)
    plan = json.loads((study / "plan.json").read_text())
    config = plan["arms"]["baseline"]["config"]
    engine = {k.removeprefix("engine."): v for k, v in config.items() if k.startswith("engine.")}
    load = study / "workloads" / "00.parquet"
    load_file = {"path": str(load), "sha256": plan["workload"]["sha256_by_block"][0]}
    assert len(sealed.read(load, load_file["sha256"])) > 1
    found = {}
    for mode in ("fast", "invariant"):
        (tmp_path / mode / "workloads").mkdir(parents=True)
        task = {
            "packet_id": "p",
            "claim_id": sha256_file(load),
            "target": "intaglio_local",
            "concurrency": 1,
            "request_timeout_s": 60.0,
            "run_deadline_s": 120.0,
            "arms": {ARM: {**engine, "numerics.mode": mode}},
            "environment": plan["environment"],
            "workloads": [load_file],
            "warmup": load_file,
        }
        found[mode] = executor._attempt(tmp_path / mode, task, RunKey(None, ARM, 1)).summary
    assert 0 < found["fast"]["threshold"] < 1.0, found
    assert found["invariant"]["threshold"] == 0.0
    assert len(found["fast"]["invariant_sha256"]) == 64
    assert found["fast"]["invariant_sha256"] == found["invariant"]["invariant_sha256"]


def test_compiled_kernels_are_taken_along_only_from_a_folder_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTAGLIO_CACHE", str(tmp_path / "kept"))
    (tmp_path / "named").mkdir()
    named = offline.prepare(tmp_path / "named", tmp_path / "models").environment
    assert named["INTAGLIO_CACHE"] == str(tmp_path / "kept")
    monkeypatch.delenv("INTAGLIO_CACHE")
    (tmp_path / "cold").mkdir()
    cold = offline.prepare(tmp_path / "cold", tmp_path / "models").environment
    assert "INTAGLIO_CACHE" not in cold
    assert str(tmp_path / "cold" / "home") in cold["XDG_CACHE_HOME"]
