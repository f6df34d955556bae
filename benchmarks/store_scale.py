"""What a store of thousands of studies costs to list and to index, and what one study of millions of tokens costs.

    python benchmarks/store_scale.py [--studies 2000] [--blocks 2] [--tokens 10000000] [--mirror 20] [--place DIR] [--json]

Writes synthetic studies (sealed, judged, each one verifying) and one long one into a temporary folder, then measures,
each in a process of its own: `counterproof list` where no line was ever kept (a copied store), where every study has the
line that its run left beside it, and a second time, the rebuild of the DuckDB view with
all its verifying, the time between tokens of the long study from DuckDB with the process's peak resident memory, and
the MLflow mirror of a few studies, first and again. The files were just written, so they come from the page cache.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from counterproof.record.summaries import FILE_NAME, RACY_NS

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support" / "synthetic_store.py"
LONG = "long"
HOLDS = "holds.json"
SECONDS = 3600.0

_REBUILD = (
    "from counterproof.record import store, views\nprint(len(views.rebuild_duckdb(store.open_store())[0]))\n"
)
_LINES = """
from counterproof.commands import listing
from counterproof.record import store
opened = store.open_store()
for folder in opened.study_folders():
    listing.keep(store.StudyPaths(folder))
"""
_TOKENS = f"""
from counterproof.record import duckdb_view, store
found = duckdb_view.token_gaps(store.open_store().index, {LONG!r})
print(sum(run.tokens for run in found))
"""
_MIRROR = """
import sys
from counterproof.record import mlflow_mirror, mlflow_view, store, verify
from contextlib import nullcontext
opened = store.open_store()
studies = [verify.verify_study(folder) for folder in opened.study_folders()[: int(sys.argv[1])]]
print(mlflow_mirror.mirror(mlflow_view.Tracker.open(opened), studies, nullcontext).written)
"""


def measured(store: Path, *command: str) -> tuple[float, float, str]:
    """Run a command on the store. Returns seconds, peak resident MiB and its output; raises when it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment["COUNTERPROOF_STORE"] = str(store)
    # Only waited-for children count, so a fresh process waits for this one alone.
    wrapper = (
        "import json, resource, subprocess, sys, time\n"
        "began = time.monotonic()\n"
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True, check=True)\n"
        "seconds = time.monotonic() - began\n"
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024\n"
        "print(json.dumps([seconds, peak, done.stdout]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", wrapper, *command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=SECONDS,
        env=environment,
    )
    seconds, peak, output = json.loads(done.stdout)
    return seconds, peak, output


def write(store: Path, studies: int, blocks: int, tokens: int) -> dict[str, Any]:
    """Write the store; returns what it holds, which is also kept beside it."""
    synthetic = load()
    began = time.monotonic()
    runs = synthetic.fill(store, studies, blocks=blocks)
    written = time.monotonic() - began
    exact = synthetic.build_long(store, LONG, tokens)
    holds = {"studies": studies, "runs": runs, "long_tokens": exact, "written_s": written}
    (store / HOLDS).write_text(json.dumps(holds), encoding="utf-8")
    return holds


def measure(store: Path, studies: int, blocks: int, tokens: int, mirror: int) -> dict[str, Any]:
    """Write the store, unless it is there already, and measure it; see the module's text."""
    if (store / HOLDS).is_file():
        result: dict[str, Any] = json.loads((store / HOLDS).read_text(encoding="utf-8"))
        studies = result["studies"]
    else:
        result = write(store, studies, blocks, tokens)
    exact = result["long_tokens"]
    python, script = sys.executable, str(Path(sys.executable).with_name("counterproof"))
    (store / FILE_NAME).unlink(missing_ok=True)
    settle(store)
    for name in ("list_copied_s", "list_first_s", "list_again_s"):
        if name == "list_first_s":
            (store / FILE_NAME).unlink()
            measured(store, python, "-c", _LINES)
        result[name], _, output = measured(store, script, "list")
        check(output.count("\n") == studies + 2, "list does not show every study")
    result["rebuild_s"], result["rebuild_peak_mib"], output = measured(store, python, "-c", _REBUILD)
    check(int(output) == studies + 1, "not every study was indexed")
    result["index_mib"] = (store / "index.duckdb").stat().st_size / 2**20
    result["tokens_s"], result["tokens_peak_mib"], output = measured(store, python, "-c", _TOKENS)
    check(int(output) == exact, "not every token was aggregated")
    for name, expected in (("mirror_first_s", mirror), ("mirror_again_s", 0)) if mirror else ():
        result[name], _, output = measured(store, python, "-c", _MIRROR, str(mirror))
        check(int(output) == expected, "the mirror wrote another number of studies")
    result["mirrored"] = mirror
    return result


def settle(store: Path) -> None:
    """Until the newest study's line may be kept (see `record.summaries`): changed a moment ago, it is not."""
    newest = max(path.stat().st_ctime_ns for path in (store / "studies").glob("*/*") if path.is_file())
    while time.time_ns() - newest < 1.5 * RACY_NS:
        time.sleep(0.1)


def check(holds: bool, message: str) -> None:
    """A figure of work that was not done is none."""
    if not holds:
        raise RuntimeError(message)


def load() -> ModuleType:
    """The module that writes synthetic stores; it belongs to the tests."""
    spec = importlib.util.spec_from_file_location("counterproof_tests_synthetic_store", SUPPORT)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{SUPPORT} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--blocks", type=int, default=2, help="of each study; 4 runs a block and 2 more")
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--mirror", type=int, default=20, help="how many studies MLflow gets")
    parser.add_argument(
        "--place", type=Path, help="keep the store there, and use the one that is there already"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="store-scale-") as temporary:
        place = args.place or Path(temporary)
        found = measure(place, args.studies, args.blocks, args.tokens, args.mirror)
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    for name, value in found.items():
        print(f"{name:18} {value:,.2f}" if isinstance(value, float) else f"{name:18} {value:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
