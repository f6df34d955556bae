"""The run on a GPU where there is none: it skips and says so, lists its work, keeps its deadlines, hides no failure."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

SECTIONS = ("correctness", "invariance", "tokens", "roofline", "swapping", "decode")


@pytest.fixture
def gpu_run(gpu_script, monkeypatch):
    """The module tests/gpu/run.py."""
    from pathlib import Path

    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "gpu"))
    before = set(sys.modules)
    yield importlib.import_module("run")
    for name in set(sys.modules) - before:
        if name in ("run", "report", "interpreter", "sections"):
            del sys.modules[name]


def test_without_a_device_it_skips_and_writes_nothing(gpu_script, tmp_path):
    done = gpu_script("run", "--out", str(tmp_path / "gpu.json"), OUT=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("skipped: torch sees no CUDA device")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_lists_every_section_within_ten_minutes(gpu_script, tmp_path):
    done = gpu_script("run", "--dry", OUT=str(tmp_path))
    assert done.returncode == 0, done.stderr
    listed = [line for line in done.stdout.splitlines() if line and not line.startswith(" ")]
    assert tuple(line.split(" ")[0] for line in listed[:-1]) == SECTIONS
    assert int(listed[-1].split(", ")[1].split(" ")[0]) <= 600
    for line in (
        "copy",
        "product",
        "decode fast 1 rows of 1024",
        "model chunk 7 bf16",
        "swapped and back bf16",
    ):
        assert f"  {line}" in done.stdout.splitlines()
    assert list(tmp_path.iterdir()) == []


BROKEN = {
    "raises": ("report.check('a', True)\n    raise RuntimeError('on purpose')", "failed", 1, "on purpose"),
    "wrong": ("report.check('a', False)", "failed", 1, ""),
    "silent": ("pass", "failed", 0, ""),
    "hangs": (
        "report.check('a', True)\n    import time; time.sleep(600)",
        "timeout",
        1,
        "stopped after 10 s",
    ),
    "right": ("report.check('a', True)", "passed", 1, None),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_section_ends_as_what_it_was(gpu_run, name, tmp_path, monkeypatch, capsys):
    body, status, reported, error = BROKEN[name]
    source = f"def run(device, interpreted, report):\n    {body}\n"
    (tmp_path / f"{name}_section.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = gpu_run._section(gpu_run.Section(f"{name}_section", "a test's", 10), True)
    assert (result["status"], len(result["lines"])) == (status, reported)
    assert ("error" in result) == (error is not None)
    assert (error or "") in result.get("error", "")
    assert status in capsys.readouterr().out


def test_a_failed_check_fails_the_run_and_is_written_down(gpu_run, tmp_path, monkeypatch, capsys):
    (tmp_path / "wrong_section.py").write_text(
        "def run(d, i, report):\n    report.check('a', False, ours=3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu_run, "SECTIONS", (gpu_run.Section("wrong_section", "a test's", 60),))
    target = tmp_path / "deep" / "gpu.json"
    assert gpu_run.main(["--interpreter", "--out", str(target)]) == 1
    written = json.loads(target.read_text())
    assert written["sections"]["wrong_section"]["lines"] == [
        {"kind": "check", "name": "a", "passed": False, "ours": 3}
    ]
    assert "failed: ['a']" in capsys.readouterr().out


def test_every_kernel_compiles_for_two_generations_of_devices(gpu_script):
    done = gpu_script("compiled", "80", "90")
    assert done.returncode == 0, done.stderr
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(made) == 2 * 2 * 7
    for line in made:
        # What one block may ask for on the smaller of the devices with compute capability 8.
        assert line["shared"] <= 99 * 1024
        assert line["code"] > 0
        multiplies = line["kernel"] in ("paged_decode", "paged_prefill", "fixed_linear")
        assert line["tensor_cores"] == (multiplies and line["dtype"] == "bf16")


def test_one_binary_of_a_kernel_serves_every_batch(gpu_script):
    done = gpu_script("binaries")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(
        (
            "paged_decode",
            "paged_prefill",
            "merge_splits",
            "fixed_linear",
            "store_rows",
            "rms_norm_rows",
            "silu_times",
        ),
        1,
    )


def test_products_that_depend_on_the_row_are_found_out_and_the_fallback_is_an_event(gpu_script):
    interpreted = {"TRITON_INTERPRET": "1", "INTAGLIO_TRITON": "interpret"}
    done = gpu_script("refused", **interpreted)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["fast"]["path"].startswith("fast/cpu/triton-interpreter")
    assert not [event for event in found["fast"]["events"] if event["path"] == "kernel_path"]
    assert "triton" not in found["invariant"]["path"]
    (event,) = [event for event in found["invariant"]["events"] if event["path"] == "kernel_path"]
    assert event["effective"] == found["invariant"]["path"]
    assert "changed bits with the chunk" in event["reason"]
