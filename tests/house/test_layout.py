"""The house itself: what may be imported, what may be committed, what the text may say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def test_the_folder_named_platform_does_not_shadow_the_standard_library() -> None:
    code = "import platform, torch; print(platform.__file__); platform.machine()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip().startswith(str(ROOT / "platform"))


def test_no_init_file_makes_a_source_root_importable() -> None:
    for folder in ("platform", "engine", "reviews", "dashboards", "experiments", "data", "tests"):
        assert not (ROOT / folder / "__init__.py").exists(), folder


def test_files_stay_readable_in_size() -> None:
    long = {}
    for path in tracked():
        if path.suffix == ".py":
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > 400:
                long[str(path.relative_to(ROOT))] = lines
    assert not long, long


def test_no_machine_paths_or_large_files_are_committed() -> None:
    machine = re.compile(r"(?<![\w.])/(?:work|root|home/\w+)/")
    wrong = []
    for path in tracked():
        if path.stat().st_size > 3_000_000:
            wrong.append(f"{path.name} is larger than 3 MB")
        if path.suffix in {".py", ".md", ".yaml", ".toml", ".txt", ""}:
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                if machine.search(line) and "/home/alice" not in line:
                    wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not wrong, wrong


def test_no_pickle_outside_the_refusing_code() -> None:
    wrong = []
    for path in tracked():
        parts = path.relative_to(ROOT).parts
        if path.suffix != ".py" or parts[0] not in {"platform", "engine", "reviews", "dashboards"}:
            continue
        if re.search(r"^\s*(import|from)\s+(pickle|dill|joblib|marshal)\b", path.read_text("utf-8"), re.M):
            wrong.append(str(path.relative_to(ROOT)))
    assert not wrong, wrong


def test_every_dependency_is_pinned() -> None:
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            pins[re.sub(r"[-_.]+", "-", name).lower()] = version
    assert pins["torch"] == "2.13.0"
    import importlib.metadata as metadata

    missing = []
    for requirement in metadata.requires("counterproof") or []:
        name = re.match(r"[A-Za-z0-9_.-]+", requirement)
        assert name is not None
        if re.sub(r"[-_.]+", "-", name.group()).lower() not in pins:
            missing.append(name.group())
    assert not missing, missing


def test_no_kept_result_names_a_folder_of_the_machine_it_was_measured_on() -> None:
    def places(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield from re.findall(r"(?:^|[=\s:])(/[\w.-]+/[\w./-]+)", value)
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from places(part)

    assert list(places({"a": ["engine.model=/somewhere/else", "a/b"]})) == ["/somewhere/else"]
    kept = [path for path in tracked() if path.suffix == ".json" and path.parent.name == "results"]
    found = {path.name: list(places(json.loads(path.read_text(encoding="utf-8")))) for path in kept}
    assert kept and not any(found.values()), found
