"""Every fault in field_cases.yaml has tests that exist, or a reason why it cannot have any yet."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CASES: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "field_cases.yaml").read_text(encoding="utf-8")
)
# Which groups make up a series of numbers, and where the series begins in the list they come from.
SERIES = {
    "engine": {
        *("paged-kv", "prefix", "context", "swap", "sampling", "speculation", "parallel"),
        *("disaggregation", "recovery", "graph"),
    },
    "harness": {"harness"},
    "review": {"packet", "blinding", "sealing", "replay", "verdict", "decision"},
}
HEADINGS = {"engine": "## Engine", "harness": "## Harness", "review": "## Packets"}
# What is built must be tested: only these groups may wait.
MAY_WAIT = {"speculation", "parallel", "disaggregation", "recovery", "graph"}


def split(key: str) -> tuple[str, int]:
    """Group and number of a key."""
    group, _, number = key.rpartition("-")
    return group, int(number)


@functools.cache
def names(file: str) -> frozenset[str]:
    """The tests that a file defines: functions, methods, and state machines offered under a name of their own."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign) and "TestCase" in ast.unparse(node.value):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(name for name in found if name.lower().startswith("test"))


def test_keys_are_groups_and_numbers_in_order() -> None:
    groups = {group: series for series, members in SERIES.items() for group in members}
    assert {split(key)[0] for key in CASES} == set(groups)
    for series, members in SERIES.items():
        numbers = [split(key)[1] for key in CASES if split(key)[0] in members]
        assert numbers == sorted(set(numbers)), series


@pytest.mark.parametrize("key", CASES)
def test_a_case_has_tests_that_exist_or_a_reason(key: str) -> None:
    case = CASES[key]
    assert set(case) <= {"what", "tests", "rest", "later"}
    assert case["what"].strip()
    assert ("tests" in case) != ("later" in case), "tests, or why there are none yet"
    if "later" in case:
        assert split(key)[0] in MAY_WAIT and case["later"].strip()
        return
    assert case["tests"]
    assert len(set(case["tests"])) == len(case["tests"])
    for identifier in case["tests"]:
        file, name = identifier.split("::")
        assert file.startswith("tests/") and (ROOT / file).is_file(), identifier
        assert name in names(file), identifier


def test_a_name_that_is_gone_would_be_noticed() -> None:
    assert "test_there_is_no_such_test" not in names("tests/house/test_field_cases.py")
    assert "test_a_name_that_is_gone_would_be_noticed" in names("tests/house/test_field_cases.py")
    assert "TestPool" in names("tests/engine/policy/test_block_pool.py")


@pytest.mark.parametrize("series", SERIES)
def test_no_case_of_the_list_is_left_out(series: str, shared_data: Path) -> None:
    source = shared_data.parent / "research" / "field_failures.md"
    if not source.is_file():
        pytest.skip("needs the list of faults beside the public data")
    text = source.read_text(encoding="utf-8").partition(HEADINGS[series])[2]
    text = re.split(r"^## ", text, flags=re.M)[0]
    listed = [int(number) for number in re.findall(r"^(\d+)\. ", text, flags=re.M)]
    kept = [split(key)[1] for key in CASES if split(key)[0] in SERIES[series]]
    assert listed
    assert kept == listed
