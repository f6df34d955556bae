"""The benchmarks of single steps on the tiny model: they run, compute what they say, and clean up."""

from __future__ import annotations

import os
import re

import pytest
from benchmarks import contention, rows, step_overhead

from intaglio.compute.native import status


def test_rows_prints_a_ratio_for_each_row_count(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "tiny", "--contexts", "20", "--counts", "1", "3", "--repeats", "2", "--steps", "3"]
    assert rows.main([*options, "--threads", "1"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["context", "1", "row", "ms", "x3"]
    assert float(line.split()[2]) > 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_contention_prints_both_rates_and_leaves_no_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert contention.main(["--model", "tiny", "--tokens", "20", "--repeats", "1"]) == 0
    found = re.search(r"alone ([\d.]+) .*, ([\d.]+|beside.*), ratio ([\d.]+)", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) > 0


def test_step_overhead_takes_the_kernels_out(capsys: pytest.CaptureFixture[str]) -> None:
    if status.status().library is None:
        pytest.skip(f"no native kernels: {status.status().reason}")
    assert step_overhead.main(["--rows", "1", "2", "--context", "20", "--steps", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["rows", "1", "2"]
    assert all(float(line.split()[2]) > 0 for line in lines[1:])


def test_the_examples_of_step_overhead_run_on_the_model_they_name(capsys: pytest.CaptureFixture[str]) -> None:
    if status.status().library is None:
        pytest.skip(f"no native kernels: {status.status().reason}")
    examples = re.findall(
        r"^    python benchmarks/step_overhead.py ?(.*)$", str(step_overhead.__doc__), re.MULTILINE
    )
    assert len(examples) == 2
    for example in examples:
        assert step_overhead.main([*example.split(), "--rows", "1"]) == 0
        row, _, median, *_ = capsys.readouterr().out.splitlines()[-1].split()
        assert row == "1"
        assert float(median) > 0
