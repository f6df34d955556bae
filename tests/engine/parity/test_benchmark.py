"""The comparison with transformers runs as a command and reports what it measured. Its times are not judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("options", [[], ["--no-cache"]], ids=["cache", "no-cache"])
def test_both_sides_are_measured_and_write_the_same_tokens(repository, tiny_model, tmp_path, options):
    report = tmp_path / "report.json"
    command = [sys.executable, repository / "benchmarks" / "engine_vs_transformers.py", "--model", tiny_model]
    command += ["--dtype", "fp32", "--prompt-tokens", "40", "--new-tokens", "12", "--repeats", "1"]
    command += ["--threads", "1", "--wait-policy", "passive", "--timeout", "120", "--json", report, *options]
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=250,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "time per output token" in done.stdout
    summary = json.loads(report.read_text())
    assert summary["task"]["cache"] is not bool(options)
    assert summary["tokens"] == summary["equal_leading_tokens"] == 12
    for metric in ("ttft_ms", "tpot_ms", "peak_rss_mib"):
        row = summary["medians"][metric]
        assert row["ratio"] == pytest.approx(row["intaglio"] / row["transformers"])
        assert summary["runs"]["intaglio"][0][metric] == row["intaglio"] > 0
    assert {"torch", "transformers", "kernel path"} <= summary["versions"].keys()
