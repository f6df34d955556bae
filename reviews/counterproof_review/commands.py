"""`counterproof packet build|verify|replay|show`, and the views of `view_commands`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from counterproof.commands.console import note, table
from counterproof.errors import EXIT_AGAINST, EXIT_INVALID, EXIT_OK, CounterproofError
from counterproof.record.store import Store, open_store
from counterproof_review import (
    challenge_commands,
    key_commands,
    override_commands,
    review_commands,
    view_commands,
)

_EPILOG = """examples:
  counterproof packet build kv_cache-20260102-030405
  counterproof packet verify 582f3ec8fe93e0a7.rep.zip
  counterproof packet show 582f3ec8fe93e0a7.rep.zip protocol/prereg.json
  counterproof packet replay 582f3ec8fe93e0a7.rep.zip --dir replay --blocks 6
  counterproof packet schema prereg
  counterproof packet export-crate 582f3ec8fe93e0a7.rep.zip crate
"""
_BUILD = """examples:
  counterproof packet build kv_cache-20260102-030405
  counterproof packet build kv_cache-20260102-030405 --out claim.rep.zip
  counterproof packet build kv_cache-20260102-030405 --keys packets/582f3ec8fe93e0a7.key.json   (the same bytes again)
"""
_VERIFY = """examples:
  counterproof packet verify claim.rep.zip
  counterproof packet verify claim.rep.zip --root 02b7a3e1...    (the root its author told you)

exit codes: 0 whole and unchanged, 2 malformed or dangerous, 3 needs a newer counterproof, 5 not what it says
"""
_REPLAY = """examples:
  counterproof packet replay claim.rep.zip
  counterproof packet replay claim.rep.zip --dir replay --blocks 6 --keep
  counterproof packet replay claim.rep.zip --models /mnt/models

The folder must be empty or absent. The model is searched by SHA-256, never by name. Nothing is fetched.
exit codes: 0 replayed, whatever it says, 2, 3, 4 as always, 5 the replay's own controls failed;
with --gate also 1 for NOT CONSISTENT and 5 for INCONCLUSIVE
"""


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the commands `packet`, `keys`, `review` and `override` to the harness's command line."""
    key_commands.register(subparsers)
    review_commands.register(subparsers)
    override_commands.register(subparsers)
    packet = _parser(subparsers, "packet", "build, verify, replay and challenge replication packets", _EPILOG)
    actions = packet.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = _parser(actions, "build", "write a study as one file that others can replay", _BUILD)
    build.add_argument("study", help="a study of the store, or its folder")
    build.add_argument(
        "--out", type=Path, help="where to write it (default: packets/<id>.rep.zip in the study)"
    )
    build.add_argument("--keys", type=Path, help="keys of an earlier build, for the same bytes again")
    build.set_defaults(func=_build)
    verify = _parser(actions, "verify", "check a packet; writes and runs nothing", _VERIFY)
    verify.add_argument("file", type=Path)
    verify.add_argument("--root", help="the root that the packet must have")
    verify.set_defaults(func=_verify)
    show = _parser(actions, "show", "list a packet, or print one of its documents", _EPILOG)
    show.add_argument("file", type=Path)
    show.add_argument("path", nargs="?", help="a document of the packet, e.g. protocol/prereg.json")
    show.set_defaults(func=_show)
    _add_replay(actions)
    challenge_commands.register(actions)
    view_commands.register(actions, _parser)


def _add_replay(actions: argparse._SubParsersAction[Any]) -> None:
    replay = _parser(actions, "replay", "run a packet's arms again, network off, and compare ratios", _REPLAY)
    replay.add_argument("file", type=Path)
    replay.add_argument(
        "--dir", type=Path, help="an empty folder to work in (default: a new one in the store)"
    )
    replay.add_argument("--blocks", type=int, help="how many blocks to run (default: all of the packet's)")
    replay.add_argument(
        "--models", type=Path, action="append", default=[], help="a folder to search for the model"
    )
    replay.add_argument("--nonce", help="64 hex digits that set the order of runs (default: random)")
    replay.add_argument("--keep", action="store_true", help="keep raw records and inputs")
    replay.add_argument("--gate", action="store_true", help="exit code 1 or 5 unless CONSISTENT")
    replay.set_defaults(func=_replay)


def _parser(
    subparsers: argparse._SubParsersAction[Any], name: str, summary: str, epilog: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def _build(args: argparse.Namespace) -> int:
    from counterproof_review.packet import labels
    from counterproof_review.packet.build import build

    given = Path(args.study)
    folder = given if (given / "plan.json").is_file() else open_store().study(args.study).folder
    keys = labels.read_keys(args.keys) if args.keys else None
    built = build(folder, out=args.out, keys=keys)
    print(f"packet  {built.path}")
    print(f"root    {built.root}")
    print(f"sha256  {built.sha256}")
    note(f"keys kept beside the study, not in the packet: {built.key_path}")
    if built.evidence_valid is False:
        note("the study's own evidence is invalid: a replay of it can only say INCONCLUSIVE")
    note("blinding level L0: the author's results are in the packet, unsealed")
    return EXIT_OK


def _verify(args: argparse.Namespace) -> int:
    from counterproof_review.packet.reader import Archive
    from counterproof_review.packet.verify import Verification, verify

    report = Verification()
    try:
        with Archive.open(args.file) as archive:
            verify(archive, report, root=args.root)
    except CounterproofError:
        if report.checks:
            print(_checks(report))
        raise
    print(_checks(report))
    print(f"\npacket {report.packet['packet_id']} is whole; root {report.root}")
    print("A packet forged as a whole has another root: compare it with the one its author gave you.")
    return EXIT_OK


def _checks(report: Any) -> str:
    return table(("check", "outcome", "seen"), [(c.name, c.status, c.detail) for c in report.checks])


def _show(args: argparse.Namespace) -> int:
    from counterproof_review.packet.content import read_object
    from counterproof_review.packet.errors import PacketError
    from counterproof_review.packet.reader import Archive
    from counterproof_review.packet.verify import Verification, verify

    report = Verification()
    with Archive.open(args.file) as archive:
        verify(archive, report)
        if args.path is None:
            rows = [(path, member.size) for path, member in sorted(archive.members.items())]
            print(table(("path", "bytes"), rows))
            return EXIT_OK
        if not args.path.endswith(".json"):
            raise PacketError("E_JSON", "only JSON documents can be shown", path=args.path)
        document = read_object(archive, args.path)
    if args.path.startswith(("replay/arms/", "results/")):
        note("you have read what arms are or did: you are not blind to this packet any more")
    print(json.dumps(document, indent=2, sort_keys=True))
    return EXIT_OK


def _replay(args: argparse.Namespace) -> int:
    from counterproof_review.packet import agreement
    from counterproof_review.packet.progress import Progress
    from counterproof_review.packet.reader import Archive
    from counterproof_review.packet.replay import RECORD, REPORT, Options, read_nonce, replay

    folder = args.dir or _new_folder(open_store(), args.file)
    nonce = read_nonce(args.nonce) if args.nonce else None
    options = Options(folder, args.blocks, tuple(args.models), nonce, args.keep)
    with Archive.open(args.file) as archive, Progress(sys.stderr) as progress:
        done = replay(archive, options, note, progress.tell)
    print((done.folder / REPORT).read_text(encoding="utf-8"))
    note(f"record: {done.folder / RECORD}")
    verdict = done.record["verdict"]
    if verdict == agreement.INVALID:
        return EXIT_INVALID
    if args.gate and verdict == agreement.NOT_CONSISTENT:
        return EXIT_AGAINST
    return EXIT_INVALID if args.gate and verdict != agreement.CONSISTENT else EXIT_OK


def _new_folder(store: Store, file: Path) -> Path:
    """A folder of the store that is not there yet."""
    base = store.root / "replays"
    stem = file.name.split(".")[0] or "packet"
    number = 1
    while (base / f"{stem}-{number}").exists():
        number += 1
    return base / f"{stem}-{number}"
