"""Fixtures of the whole suite: where data and models lie, and an environment that is the same for every test.

Nothing here imports torch or transformers, so that the tests of policy code stay free of them.
"""

from __future__ import annotations

import os
from pathlib import Path

# These take effect only before torch and mlflow are imported, hence here and not in a fixture.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")

import pytest
from hypothesis import settings

# The same examples in every run: what is found by chance becomes an @example. `--hypothesis-profile=default` searches on.
settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.load_profile("same")

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public data beside the checkout; the test is skipped where it is absent."""
    root = Path(os.environ.get("COUNTERPROOF_SHARED", REPOSITORY.parent / "shared"))
    data = root / "data"
    if not data.is_dir():
        pytest.skip("needs the public data of ../shared (or set COUNTERPROOF_SHARED)")
    return data


@pytest.fixture(scope="session")
def stories260k(shared_data: Path) -> Path:
    """The folder of stories260K (5 layers, hidden 64, 8 heads, 4 KV heads, vocabulary 512, context 512)."""
    return _model(shared_data / "models" / "stories260k" / "hf")


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The folder of the tiny model that ships with the project; always there."""
    return REPOSITORY / "data" / "models" / "tiny"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The fetched SmolLM2-135M-Instruct; mark users of it with `smollm2`."""
    roots = [os.environ.get("INTAGLIO_MODELS"), _child(os.environ.get("COUNTERPROOF_STORE"), "models")]
    for root in (*roots, str(REPOSITORY / "store" / "models")):
        if root and (Path(root) / "smollm2-135m" / "config.json").is_file():
            return Path(root) / "smollm2-135m"
    pytest.skip("needs SmolLM2: run 'counterproof models fetch smollm2-135m'")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of this test's own, which COUNTERPROOF_STORE names for it and its child processes.

    Models stay where they are: INTAGLIO_MODELS keeps naming the folder they were fetched into.
    """
    if "INTAGLIO_MODELS" not in os.environ:
        before = os.environ.get("COUNTERPROOF_STORE", str(REPOSITORY / "store"))
        monkeypatch.setenv("INTAGLIO_MODELS", str(Path(before) / "models"))
    path = tmp_path / "store"
    path.mkdir()
    monkeypatch.setenv("COUNTERPROOF_STORE", str(path))
    return path


def _child(root: str | None, name: str) -> str | None:
    return str(Path(root) / name) if root else None


def _model(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        pytest.skip(f"needs the model folder {folder.name} of ../shared")
    return folder
