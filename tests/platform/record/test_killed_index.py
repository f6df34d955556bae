"""Kill -9 while the DuckDB view is being written: what was there stays readable and whole, and the next writer goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import duckdb
import pytest

from counterproof.record import duckdb_view
from counterproof.record.verify import verify_study

FIELDS = {"blocks": 1, "requests": 3, "new_tokens": 3, "prompt_tokens": 8, "equivalence": False}
KILLED = """
import os, signal, sys
from pathlib import Path
from counterproof.record import duckdb_view
from counterproof.record.verify import verify_study
real = duckdb_view.{step}
def half(*arguments):
    if {after}:
        real(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
duckdb_view.{step} = half
duckdb_view.update(Path(sys.argv[1]), verify_study(Path(sys.argv[2])))
"""


def studies(path: Path) -> list[str]:
    with duckdb.connect(str(path), read_only=True) as connection:
        return [name for (name,) in connection.execute("select study from studies order by study").fetchall()]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["_insert_plain", "_insert_files", "os.replace"])
def test_a_killed_writer_leaves_the_old_file(
    synthetic: ModuleType, tmp_path: Path, step: str, after: bool
) -> None:
    first, second = (
        synthetic.build(tmp_path, synthetic.StudyModel(study=name, **FIELDS)) for name in ("first", "second")
    )
    index = tmp_path / "index.duckdb"
    duckdb_view.update(index, verify_study(first))
    before = duckdb_view.content_digest(index)
    code = KILLED.format(step=step, after=after)
    done = subprocess.run(
        [sys.executable, "-c", code, str(index), str(second)], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    # Only a file that was put in its place as a whole counts.
    put = step == "os.replace" and after
    assert studies(index) == (["first", "second"] if put else ["first"])
    if not put:
        assert duckdb_view.content_digest(index) == before
    duckdb_view.update(index, verify_study(second))
    whole = tmp_path / "whole.duckdb"
    duckdb_view.rebuild(whole, [verify_study(first), verify_study(second)])
    assert duckdb_view.content_digest(index) == duckdb_view.content_digest(whole)
