"""Running the scripts of tests/gpu in processes of their own: how Triton runs is settled when it is first imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "gpu"
Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def gpu_script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """`gpu_script(name, *arguments, timeout=, **environment)` runs tests/gpu/<name>.py where no device is seen."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs the package triton, which has no build for this system")
    cache = tmp_path_factory.mktemp("triton")

    def run(
        name: str, *arguments: str, timeout: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        clean = {
            k: v for k, v in os.environ.items() if k not in ("OUT", "TRITON_INTERPRET", "INTAGLIO_TRITON")
        }
        clean |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, str(SCRIPTS / f"{name}.py"), *arguments],
            env=clean | environment,
            timeout=timeout,
            check=False,
            capture_output=True,
            text=True,
        )

    return run
