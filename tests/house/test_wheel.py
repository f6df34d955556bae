"""A wheel built from the checkout works outside it: commands, experiments, the tiny model, the pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = out.glob("*.whl")
    site = out / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site)]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return site


def outside(site: Path, cwd: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(site), "COUNTERPROOF_STORE": str(cwd / "store")}
    return subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=200
    )


def test_the_wheel_is_what_is_imported(installed: Path, tmp_path: Path) -> None:
    code = "import counterproof, intaglio, counterproof_review, counterproof_dashboard as d; print(counterproof.__file__, d.__file__)"
    done = outside(installed, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert all(part.startswith(str(installed)) for part in done.stdout.split())


def test_commands_and_experiments_come_along(installed: Path, tmp_path: Path) -> None:
    done = outside(installed, tmp_path, "-m", "counterproof", "run", "--help")
    assert done.returncode == 0, done.stderr
    done = outside(installed, tmp_path, "-m", "counterproof", "run", "no_such_experiment")
    assert done.returncode == 2
    assert "kv_cache" in done.stderr + done.stdout


@pytest.mark.slow
def test_the_tiny_model_generates_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    argv = [
        "-m",
        "intaglio",
        "generate",
        "--model",
        "tiny",
        "--prompt",
        "The",
        "--max-tokens",
        "8",
        "--greedy",
    ]
    done = outside(installed, tmp_path, *argv)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 3
