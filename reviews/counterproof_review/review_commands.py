"""`counterproof review ...`: the steps of a review, each a command in a folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from counterproof_review import challenge_commands
from counterproof_review import review_actions as actions
from counterproof_review.key_commands import parser
from counterproof_review.review_next import then

_EPILOG = """the steps, in order, and who takes them (R is the folder given with --review):
  steward   counterproof review init R --registry registry.dsse.json
  author    counterproof review prereg kv_cache --study my-claim --review R     registers the study, runs nothing
  reviewer  counterproof review commit --review R                               commits to the nonce of the schedule
  steward   counterproof review witness --review R
  author    counterproof resume my-claim                                        now the study runs
  author    counterproof review issue my-claim --review R                       cold replay, then the sealed packet
  reviewer  counterproof review accept --review R --independent
  reviewer  counterproof review replay --review R                               as often as needed; every one counts
  reviewer  counterproof review freeze --review R --guess 1a2b3c4d --confidence 0.5
  author    counterproof review reveal --review R                               or the steward, after the deadline
  reviewer  counterproof review challenge --review R --minutes 30        searches; killed, it goes on
  reviewer  counterproof review verdict --review R
  steward   counterproof review verdict --review R
  author    counterproof review attach final.zip my-claim                       the decision rule sees it from now on

R is one folder that all share, or one of each, kept in step by:
  counterproof review export out.zip --review R        counterproof review import in.zip --review R

exit codes: 0 done, 1 NOT_REPLICATED (verdict --gate), 2 not due or bad input, 3 something is missing here, 4 a run failed,
5 not what was signed, or no verdict that lets a scope grow (verdict --gate)
"""


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command `review`."""
    review = parser(subparsers, "review", "blind replication, step by step", _EPILOG)
    which = review.add_subparsers(dest="action", required=True, metavar="STEP")
    init = _plain(which, "init", "begin a review in a folder with a registry", actions.init)
    init.add_argument("folder", type=Path)
    init.add_argument("--registry", type=Path, required=True)
    _author(which)
    _reviewer(which)
    _step(which, "witness", "write the heads of the other ledgers into your own", actions.witness)
    reveal = _step(which, "reveal", "open the seal (author; steward after the deadline)", actions.reveal)
    reveal.add_argument("--lost", metavar="REASON", help="steward: say that nobody can open it any more")
    verdict = _step(which, "verdict", "compute the verdict and sign it", actions.verdict)
    verdict.add_argument("--gate", action="store_true", help="exit 1 or 5 unless REPLICATED")
    _step(which, "status", "verify everything and show where the review stands", actions.status)
    export = _step(which, "export", "write what the others need as one file", actions.export)
    export.add_argument("file", type=Path)
    bring = _step(which, "import", "take over what another party exported", actions.bring)
    bring.add_argument("file", type=Path)
    attach = _plain(which, "attach", "put a finished review beside its study", actions.attach)
    attach.add_argument("file", type=Path)
    attach.add_argument("study")


def _author(which: argparse._SubParsersAction[Any]) -> None:
    prereg = _step(which, "prereg", "register a study and preregister it (author)", actions.prereg)
    prereg.add_argument("experiment", help="an experiment's name; or --registered and a study's name")
    prereg.add_argument("overrides", nargs="*", help="as for `counterproof run`")
    prereg.add_argument("--candidate", nargs="+", default=[], metavar="OVERRIDE")
    prereg.add_argument("--study", metavar="NAME", help="the study's name")
    prereg.add_argument(
        "--registered", action="store_true", help="the study is registered and has no run yet"
    )
    issue = _step(which, "issue", "build, cold-replay and issue the sealed packet (author)", actions.issue)
    issue.add_argument("study")
    issue.add_argument("--models", type=Path, action="append", default=[])
    issue.add_argument(
        "--deadline-days", type=float, default=7.0, help="after the freeze; then the steward may reveal"
    )


def _reviewer(which: argparse._SubParsersAction[Any]) -> None:
    _step(which, "commit", "commit to the nonce of the schedule (reviewer)", actions.commit)
    accept = _step(which, "accept", "accept the packet (reviewer)", actions.accept)
    accept.add_argument(
        "--independent",
        action="store_true",
        help="I took no part in the study and gain nothing from its outcome",
    )
    replay = _step(which, "replay", "one attempt; each counts (reviewer)", actions.replay)
    replay.add_argument("--blocks", type=int)
    replay.add_argument("--models", type=Path, action="append", default=[])
    ask = _step(which, "ask", "ask a question; the answer is a new packet (reviewer)", actions.ask)
    ask.add_argument("text")
    arm = _step(
        which, "show-arm", "read an arm file; recorded, lowers the level (reviewer)", actions.show_arm
    )
    arm.add_argument("arm")
    freeze = _step(which, "freeze", "freeze estimates and guess (reviewer)", actions.freeze)
    freeze.add_argument("--guess", required=True, metavar="ARM", help="which arm the candidate is")
    freeze.add_argument("--confidence", type=float, required=True, help="from 0 to 1; 0.25 is a blind guess")
    freeze.add_argument(
        "--deviation", action="append", default=[], help="what was done otherwise than planned"
    )
    freeze.add_argument("--cause", help="why a block had stalled, after a second attempt")
    challenge = _step(
        which,
        "challenge",
        "search for counterexamples, and enter what was found (reviewer)",
        actions.challenge,
    )
    challenge.add_argument("--report", type=Path, help="enter the report of a search that was made, as JSON")
    challenge.add_argument("--none", metavar="REASON", help="why no search was made")
    challenge_commands.add_options(challenge)


def _step(
    which: argparse._SubParsersAction[Any], name: str, summary: str, func: Any
) -> argparse.ArgumentParser:
    made = _plain(which, name, summary, then(func))
    made.add_argument(
        "--review", type=Path, default=Path("review"), metavar="DIR", help="the review's folder"
    )
    made.add_argument("--key", help="your key, if several here are registered")
    return made


def _plain(
    which: argparse._SubParsersAction[Any], name: str, summary: str, func: Any
) -> argparse.ArgumentParser:
    made = parser(which, name, summary, _EPILOG)
    made.set_defaults(func=func)
    return made
