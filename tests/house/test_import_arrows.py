"""Imports point one way, and policy code runs without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "intaglio": ROOT / "engine" / "intaglio",
    "counterproof": ROOT / "platform" / "counterproof",
    "counterproof_review": ROOT / "reviews" / "counterproof_review",
    "counterproof_dashboard": ROOT / "dashboards" / "counterproof_dashboard",
}
# What each package may import of the others.
ALLOWED = {
    "intaglio": set(),
    "counterproof": {"intaglio"},
    "counterproof_review": {"counterproof", "intaglio"},
    "counterproof_dashboard": {"counterproof", "counterproof_review"},
}
# The engine's torch-free face: what may be imported outside run/targets.
ENGINE_FACE = ("intaglio.config", "intaglio.errors", "intaglio.models")
HEAVY = ("torch", "transformers")

# Everything here must import (and so be tested) without torch.
TORCH_FREE = [
    "intaglio.config",
    "intaglio.errors",
    "intaglio.trace",
    "intaglio.intake",
    "intaglio.state.block_pool",
    "intaglio.state.block_pools",
    "intaglio.state.prefix_cache",
    "intaglio.state.transfer",
    "intaglio.state.host_tier",
    "intaglio.state.context_cache",
    "intaglio.state.context_files",
    "intaglio.contexts",
    "intaglio.models.catalogue",
    "counterproof.plan",
    "counterproof.workload",
    "counterproof.record",
    "counterproof.measure",
    "counterproof.decide",
    "counterproof.cli",
    "counterproof_review",
    "counterproof_dashboard.data",
    "counterproof_dashboard.charts",
]


def modules(package: str) -> Iterator[tuple[str, Path]]:
    folder = PACKAGES[package]
    for path in sorted(folder.rglob("*.py")):
        yield str(path.relative_to(folder.parent)), path


def imports(path: Path) -> Iterator[str]:
    """Every absolute module name a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_downwards(package: str) -> None:
    wrong = []
    seen = 0
    for name, path in modules(package):
        for module in imports(path):
            seen += 1
            top = module.split(".")[0]
            if top in PACKAGES and top != package and top not in ALLOWED[package]:
                wrong.append(f"{name} imports {module}")
    assert seen > 0
    assert not wrong, wrong


@pytest.mark.parametrize("package", ["counterproof", "counterproof_review", "counterproof_dashboard"])
def test_only_targets_reach_the_engine_runtime_or_torch(package: str) -> None:
    wrong = []
    for name, path in modules(package):
        if name.startswith("counterproof/run/targets/"):
            continue
        for module in imports(path):
            top = module.split(".")[0]
            if top in HEAVY:
                wrong.append(f"{name} imports {module}")
            if top == "intaglio" and module != "intaglio" and not module.startswith(ENGINE_FACE):
                wrong.append(f"{name} imports {module}")
    assert not wrong, wrong


def submodules(name: str) -> list[str]:
    top, *rest = name.split(".")
    path = PACKAGES[top].joinpath(*rest)
    if not path.is_dir():
        return [name]
    found = [name]
    for file in sorted(path.rglob("*.py")):
        if file.name == "__init__.py" or "pages" in file.parts or file.name == "app.py":
            continue
        found.append(".".join([name, *file.relative_to(path).with_suffix("").parts]))
    return found


def test_policy_code_imports_without_torch() -> None:
    names = [m for name in TORCH_FREE for m in submodules(name)]
    assert len(names) > 20
    code = (
        "import sys, importlib\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ImportError('torch is not for policy code')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
