"""Install the engines that intaglio is compared with, each in an environment of its own, and prepare their models.

    python benchmarks/peers/setup.py                              # everything, at the lowest priority
    python benchmarks/peers/setup.py --only transformers llamacpp --jobs 2
    python benchmarks/peers/setup.py --list

They go below `store/peers` (or $COUNTERPROOF_STORE/peers, or --root). What cannot be installed here is noted
with its reason and left out of comparisons. The model has to be there: `counterproof models fetch smollm2-135m`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

if (
    __name__ == "__main__"
):  # a script's own folder comes first on the path and would hide packages of these names
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.peers import catalogue, environments, models


def main(argv: list[str] | None = None) -> int:
    """Set up the chosen peers. Returns 0 when at least one of them can run, 1 otherwise."""
    args = _arguments(argv)
    root = Path(args.root).expanduser().resolve()
    if args.list:
        return _list(root)
    folder = _model(args.model)
    for name in args.only or list(catalogue.PEERS):
        peer = catalogue.PEERS[name]
        record = environments.install(root, peer, jobs=args.jobs, again=args.again)
        if record.installed and peer.dtypes:
            models.prepare(root, peer, record, folder)
    return _list(root)


def default_root() -> Path:
    """Where peers lie: below the store."""
    return Path(os.environ.get("COUNTERPROOF_STORE") or models.REPOSITORY / "store") / "peers"


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=list(catalogue.PEERS), help="these peers"
    )
    parser.add_argument("--root", default=str(default_root()), help="folder for environments and models")
    parser.add_argument("--model", default=models.MODEL, help="the model's folder or catalogue name")
    parser.add_argument("--jobs", type=int, default=1, help="compiler processes for a peer without wheels")
    parser.add_argument("--again", action="store_true", help="install anew what is installed")
    parser.add_argument("--list", action="store_true", help="say what is installed, change nothing")
    return parser.parse_args(argv)


def _model(name: str) -> Path:
    from intaglio.models import catalogue as known

    return known.resolve(name)


def _list(root: Path) -> int:
    usable = 0
    for name, peer in catalogue.PEERS.items():
        record = environments.read_record(root, name)
        if record is None:
            print(f"{peer.title:20} not set up")
        elif not record.installed:
            print(f"{peer.title:20} not installed: {record.reason}")
        else:
            usable += 1
            ready = ", ".join(record.prepared) if peer.dtypes else "reads the model's folder"
            lacks = "".join(f"; no {dtype}: {why}" for dtype, why in record.missing.items())
            print(f"{peer.title:20} {peer.packages[0].split('==')[1]:12} {ready}{lacks}")
    return 0 if usable else 1


if __name__ == "__main__":
    sys.exit(main())
