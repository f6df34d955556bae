"""Compare intaglio with other engines on the workloads W1 to W4: fresh processes, in turn, on one machine.

    python benchmarks/peers/compare.py --workload w1 --dtype bf16
    python benchmarks/peers/compare.py --case w1/bf16 w1/fp32 w2/bf16 --wait-policy active --results zen5-2-cores
    python benchmarks/peers/compare.py --workload w2 --dtype fp32 --peers openvino llamacpp --repeats 5 --json out.json
    python benchmarks/peers/compare.py --case w1/bf16 --intaglio "fp32 cache:numerics.mode=fast,kv_cache.format=fp32"

Set the others up first: `python benchmarks/peers/setup.py`. Run it on a machine that does nothing else; with
other load, --wait-policy passive keeps waiting threads from taking the cores. An interrupted comparison goes on
with --resume FOLDER, which it names at its start. Ratios below 1 mean that intaglio takes less.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if (
    __name__ == "__main__"
):  # a script's own folder comes first on the path and would hide packages of these names
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "engine"))

from benchmarks.peers import catalogue, environments, report, setup, workloads
from benchmarks.peers.cells import REPOSITORY, Contestant, Setting
from benchmarks.peers.comparison import Comparison

DTYPES = ("fp32", "bf16", "q4_1")
SHARED = (
    Path(os.environ.get("COUNTERPROOF_SHARED") or REPOSITORY.parent / "shared")
    / "data"
    / "bench_workloads.json"
)


def main(argv: list[str] | None = None) -> int:
    """Run the comparison. Returns 0, or 1 when no contestant of some case could run."""
    args = _arguments(argv)
    setting = _setting(args)
    comparison = Comparison(
        setting=setting,
        contestants=_contestants(args, setting.root),
        cases=_cases(args),
        data=_data(args, setting.model),
        repeats=args.repeats,
        folder=_folder(args, setting.root),
        say=lambda line: print(line, file=sys.stderr, flush=True),
        show=lambda text: print(text, flush=True),
    )
    if args.references_only:
        return 0 if all(comparison.references(workload) for workload, _ in comparison.cases) else 1
    print(f"cells are kept in {comparison.folder}; --resume it after an interruption", file=sys.stderr)
    document = comparison.run()
    if args.json:
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if args.results:
        report.write(REPOSITORY / "benchmarks" / "results", args.results, document)
        print(f"wrote benchmarks/results/{args.results}.md and .json", file=sys.stderr)
    ran = [any("medians" in entry for entry in case["contestants"].values()) for case in document["cases"]]
    return 0 if all(ran) else 1


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", nargs="+", default=["w1"], choices=workloads.NAMES)
    parser.add_argument("--dtype", nargs="+", default=["bf16"], choices=DTYPES)
    parser.add_argument(
        "--case", nargs="+", metavar="W/D", help="pairs such as w1/bf16, instead of the two above"
    )
    parser.add_argument(
        "--peers", nargs="*", choices=list(catalogue.PEERS), help="default: all that are installed"
    )
    parser.add_argument("--modes", nargs="*", default=["invariant", "fast"], choices=("invariant", "fast"))
    parser.add_argument(
        "--intaglio",
        action="append",
        default=[],
        metavar="NAME:PATH=VALUE,..",
        help="another contestant of ours",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--wait-policy", choices=("active", "passive"), default="active")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds allowed to one process")
    parser.add_argument("--model", default="smollm2-135m", help="the model's folder or catalogue name")
    parser.add_argument("--root", default=str(setup.default_root()), help="where setup.py put the peers")
    parser.add_argument("--python", default=sys.executable, help="interpreter for intaglio and the floors")
    parser.add_argument(
        "--workloads-file", default=str(SHARED), help="made from Python's own text when absent"
    )
    parser.add_argument("--json", metavar="FILE", help="write the whole document to FILE")
    parser.add_argument("--results", metavar="NAME", help="write benchmarks/results/NAME.md and NAME.json")
    parser.add_argument(
        "--references-only",
        action="store_true",
        help="only compute transformers' fp32 tokens, which are kept",
    )
    parser.add_argument("--resume", metavar="FOLDER", help="go on with the cells of this folder")
    return parser.parse_args(argv)


def _setting(args: argparse.Namespace) -> Setting:
    from intaglio.models import catalogue as models

    return Setting(
        root=Path(args.root).expanduser().resolve(),
        model=models.resolve(args.model),
        threads=args.threads,
        wait_policy=args.wait_policy,
        timeout_s=args.timeout,
        python=args.python,
    )


def _cases(args: argparse.Namespace) -> list[tuple[str, str]]:
    if not args.case:
        return [(workload, dtype) for workload in args.workload for dtype in args.dtype]
    pairs = [tuple(text.split("/")) for text in args.case]
    for pair in pairs:
        if len(pair) != 2 or pair[0] not in workloads.NAMES or pair[1] not in DTYPES:
            raise SystemExit(f"'{'/'.join(pair)}' is no case; write e.g. w1/bf16")
    return [(pair[0], pair[1]) for pair in pairs]


def _contestants(args: argparse.Namespace, root: Path) -> list[Contestant]:
    """Ours first, then the peers that are installed."""
    chosen = [
        Contestant(f"intaglio-{mode}", f"intaglio {mode}", "intaglio", {"numerics.mode": mode})
        for mode in args.modes
    ]
    # What sharing a prefix saves is seen beside the same engine without it.
    chosen += [
        Contestant(
            f"intaglio-{mode}-unshared",
            f"intaglio {mode}, no prefix cache",
            "intaglio",
            {"numerics.mode": mode, "prefix_cache.enabled": False},
            only=("w3",),
        )
        for mode in args.modes
    ]
    for text in args.intaglio:
        name, _, settings = text.partition(":")
        slug = "".join(letter if letter.isalnum() else "-" for letter in name)
        chosen.append(Contestant(f"intaglio-{slug}", f"intaglio {name}", "intaglio", _options(settings)))
    for name in catalogue.PEERS if args.peers is None else args.peers:
        record = environments.read_record(root, name)
        if record is not None and record.installed:
            chosen.append(Contestant(name, catalogue.PEERS[name].title, name))
        elif args.peers is not None:
            raise SystemExit(f"{name} is not installed: {record.reason if record else 'run setup.py first'}")
    return chosen


def _options(text: str) -> dict[str, Any]:
    """`path=value` pairs; a value is read as JSON where it is JSON, else as text."""
    found: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        path, sign, value = pair.partition("=")
        if not sign:
            raise SystemExit(f"'{pair}' is not of the form path=value")
        try:
            found[path] = json.loads(value)
        except json.JSONDecodeError:
            found[path] = value
    return found


def _data(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    path = Path(args.workloads_file)
    if path.is_file():
        return workloads.read(path)
    if args.workloads_file != str(SHARED):
        raise SystemExit(f"there is no file {path}")
    from intaglio.intake.tokenizer import Tokenizer

    print("no workloads file; made from Python's documentation topics", file=sys.stderr)
    return workloads.build(Tokenizer(model).encode)


def _folder(args: argparse.Namespace, root: Path) -> Path:
    if args.resume:
        return Path(args.resume)
    return root / "cells" / datetime.now(UTC).strftime("%Y%m%dT%H%M%S")


if __name__ == "__main__":
    sys.exit(main())
