"""Run the GPU's kernels, unchanged, on a CUDA device: checks and figures, each section in a process with a deadline.

    python tests/gpu/run.py           everything, under ten minutes; exits 0 without a device, and says so
    python tests/gpu/run.py --dry     lists what would run
    python tests/gpu/run.py --interpreter   the checks alone, small, in Triton's interpreter on a CPU

The result goes to --out, else to $OUT/gpu.json, else to benchmarks/results/gpu.json (only where a device ran).
Exits 1 when a check failed, a section raised, or one met its deadline.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import interpreter
import report
from sections import SECTIONS, Section

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    options = _parser().parse_args(arguments)
    chosen = [s for s in SECTIONS if not options.only or s.module in options.only]
    if options.child:
        return _child(options.child, Path(options.lines), options.interpreter)
    if options.dry:
        _list(chosen, options.interpreter)
        return 0
    device = "Triton's interpreter on a CPU" if options.interpreter else _device()
    if device is None:
        print("skipped: torch sees no CUDA device here; nothing was run and no figure was taken")
        return 0
    print(f"device: {device}")
    began = time.monotonic()
    results = {s.module: _section(s, options.interpreter) for s in chosen}
    document = {
        "device": device,
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "triton")},
        "seconds": round(time.monotonic() - began, 1),
        "sections": results,
    }
    target = Path(options.out) if options.out else _target(options.interpreter)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"written: {target}")
    return 1 if any(result["status"] in ("failed", "timeout") for result in results.values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="list what would run, and run nothing")
    parser.add_argument("--interpreter", action="store_true", help="run the checks in Triton's interpreter")
    parser.add_argument("--only", nargs="+", choices=[s.module for s in SECTIONS], help="just these sections")
    parser.add_argument("--out", help="the JSON file to write")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--lines", help=argparse.SUPPRESS)
    return parser


def _list(sections: list[Section], interpreted: bool) -> None:
    for section in sections:
        where = "device only" if section.device_only else "device or interpreter"
        print(f"{section.module} ({section.deadline_s} s at most, {where}): {section.what}")
        for name in importlib.import_module(section.module).names(interpreted):
            print(f"  {name}")
    print(f"{len(sections)} sections, {sum(s.deadline_s for s in sections)} s at most")


def _device() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _target(interpreted: bool) -> Path | None:
    if os.environ.get("OUT"):
        return Path(os.environ["OUT"]) / "gpu.json"
    return None if interpreted else ROOT / "benchmarks" / "results" / "gpu.json"


def _section(section: Section, interpreted: bool) -> dict[str, Any]:
    """One section in its own process, killed at its deadline; what it had reported until then is kept."""
    if interpreted and section.device_only:
        return {"status": "skipped", "reason": "figures are taken on a device only"}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines"
        command = [sys.executable, __file__, "--child", section.module, "--lines", str(lines)]
        environment = {**os.environ, **(interpreter.ENVIRONMENT if interpreted else {})}
        try:
            done = subprocess.run(
                [*command, *(["--interpreter"] if interpreted else [])],
                env=environment,
                timeout=section.deadline_s,
                check=False,
                capture_output=True,
                text=True,
            )
            status, error = ("passed" if done.returncode == 0 else "failed"), done.stderr[-3000:]
        except subprocess.TimeoutExpired:
            status, error = "timeout", f"stopped after {section.deadline_s} s"
        written = report.read(lines)
    failed = [line["name"] for line in written if line["kind"] == "check" and not line["passed"]]
    # A section that reported nothing has shown nothing.
    if status == "passed" and (failed or not written):
        status = "failed"
    seconds = round(time.monotonic() - began, 1)
    print(f"{section.module}: {status} in {seconds} s, {len(written)} lines, failed: {failed or 'none'}")
    result = {"status": status, "seconds": seconds, "lines": written}
    return result if status == "passed" else {**result, "error": error}


def _child(name: str, lines: Path, interpreted: bool) -> int:
    if interpreted:
        interpreter.use_ordered_products()
    import torch

    try:
        with torch.inference_mode():
            device = torch.device("cpu" if interpreted else "cuda")
            importlib.import_module(name).run(device, interpreted, report.Report(lines))
    except Exception:  # whatever it was, it belongs into the result
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
