"""The GPU's kernels in Triton's interpreter: the checks of tests/gpu, small, with nothing else changed."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow
CHECKED = ("correctness", "invariance", "tokens")
FP32_EPS = 2.0**-23


@pytest.fixture(scope="module")
def result(gpu_script, tmp_path_factory):
    """What `run.py --interpreter` wrote."""
    target = tmp_path_factory.mktemp("run") / "gpu.json"
    done = gpu_script("run", "--interpreter", "--out", str(target), timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr + (target.read_text() if target.is_file() else "")
    return json.loads(target.read_text())


def lines(result, section):
    return {line["name"]: line for line in result["sections"][section]["lines"]}


@pytest.mark.parametrize("section", CHECKED)
def test_every_check_that_is_listed_was_made_and_holds(result, gpu_script, section):
    found = result["sections"][section]
    assert found["status"] == "passed"
    listed = gpu_script("run", "--dry", "--interpreter", "--only", section)
    assert listed.returncode == 0, listed.stderr
    names = [line.strip() for line in listed.stdout.splitlines() if line.startswith("  ")]
    assert sorted(names) == sorted(line["name"] for line in found["lines"])
    assert all(line["kind"] == "check" and line["passed"] for line in found["lines"])


def test_no_figure_of_speed_comes_from_the_interpreter(result):
    for section in ("roofline", "swapping", "decode"):
        assert result["sections"][section]["status"] == "skipped"
        assert "lines" not in result["sections"][section]
    everything = [line for name in CHECKED for line in result["sections"][name]["lines"]]
    assert not [line for line in everything if line["kind"] == "figure"]


def test_attention_is_as_exact_as_torchs_beside_poison(result):
    found = [line for name, line in lines(result, "correctness").items() if name.startswith("attention")]
    assert len(found) == 21
    for line in found:
        assert line["ours"] <= 2 * line["torch"] + 4 * FP32_EPS
        assert line["lse"] < 1e-4
        assert line["poisoned"] > 1000


def test_rows_are_as_exact_as_torchs(result):
    for name in ("rms_norm", "qk_norm", "swiglu", "linear"):
        for dtype in ("fp32", "fp16"):
            line = lines(result, "correctness")[f"{name} {dtype}"]
            assert 0 < line["ours"] <= 2 * line["torch"] + 1e-5


def test_the_engine_says_the_same_as_on_torch_and_computes_no_more(result):
    found = lines(result, "tokens")
    for mode in ("fast", "invariant"):
        line = found[f"tokens {mode} fp32"]
        assert line["path"].startswith(f"{mode}/cpu/triton-interpreter/")
        assert "triton" not in line["reference"]
        assert line["tokens"] == 2 * 6
        assert line["computed"] == 19 + 5 + 2 * 5
    assert found["prefix hit fp32"]["hit"] == found["batched with a prefix hit fp32"]["hit"] == 32
