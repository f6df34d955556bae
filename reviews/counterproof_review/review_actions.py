"""What each step of `counterproof review` does: read and verify the folder, take the step, say what it led to."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from counterproof.commands.console import note, percent, table
from counterproof.errors import EXIT_AGAINST, EXIT_INVALID, EXIT_OK, InputError
from counterproof.record import atomic
from counterproof.record.store import open_store


def init(args: argparse.Namespace) -> int:
    """Begin a review."""
    from counterproof_review.protocol import folder

    place = folder.Folder(args.folder)
    if place.registry.exists():
        raise InputError(f"{args.folder} holds a review already")
    data = args.registry.read_bytes()
    folder.check_registry(data)
    args.folder.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(place.registry, data)
    note(f"review in {args.folder}; hand it on as it is, or with: counterproof review export FILE")
    return EXIT_OK


def prereg(args: argparse.Namespace) -> int:
    """Register a study without running it, and enter its plan."""
    from counterproof.run.register import StudyRequest, register
    from counterproof_review.protocol import author_steps

    review, key, _ = _mine(args, "author")
    store = open_store()
    if args.registered:
        paths = store.study(args.experiment)
    else:
        _check_first(review)
        request = StudyRequest(args.experiment, tuple(args.overrides), tuple(args.candidate), args.study)
        paths = register(store, request)
        note(f"study {paths.name}")
    review = author_steps.prereg(review, key, store, paths)
    note(f"preregistered; once the steward has witnessed it: counterproof resume {paths.name}")
    return EXIT_OK


def commit(args: argparse.Namespace) -> int:
    """Commit to a nonce."""
    from counterproof_review.protocol import reviewer_steps

    review, key, _ = _mine(args, "reviewer")
    reviewer_steps.commit(review, key)
    note("committed; the nonce lies in your key folder until you accept a packet")
    return EXIT_OK


def witness(args: argparse.Namespace) -> int:
    """Witness the other ledgers."""
    from counterproof_review.protocol import folder

    review, key, role = _mine(args, "steward", "author", "reviewer")
    note(f"{folder.witness_others(review, key, role)} heads witnessed")
    return EXIT_OK


def issue(args: argparse.Namespace) -> int:
    """Issue the sealed packet."""
    from counterproof_review.packet.progress import Progress
    from counterproof_review.protocol import author_steps

    review, key, _ = _mine(args, "author")
    store = open_store()
    with Progress(sys.stderr) as progress:
        review = author_steps.issue(
            review,
            key,
            store,
            store.study(args.study),
            args.models,
            args.deadline_days,
            note,
            progress.tell,
        )
    body = review.state.issues[-1].body
    print(f"packet  {review.folder.packet(body['packet_id'])}")
    print(f"root    {body['root']}")
    return EXIT_OK


def accept(args: argparse.Namespace) -> int:
    """Accept the packet."""
    from counterproof.record import code_identity, environment
    from counterproof_review.protocol import reviewer_steps

    review, key, _ = _mine(args, "reviewer")
    identity = environment.common_identity(code_identity.identify().as_dict(), {})
    review = reviewer_steps.accept(review, key, args.review, identity, independent=args.independent)
    note(f"accepted packet {review.state.issues[-1].body['packet_id']}; your nonce sets the schedule")
    _say_regime(review)
    return EXIT_OK


def replay(args: argparse.Namespace) -> int:
    """One attempt."""
    from counterproof_review.packet.progress import Progress
    from counterproof_review.protocol import reviewer_steps

    review, key, _ = _mine(args, "reviewer")
    with Progress(sys.stderr) as progress:
        review, error = reviewer_steps.measure(review, key, args.blocks, args.models, note, progress.tell)
    if error is not None:
        note("the attempt is entered as crashed; it counts")
        raise error
    print(_pairs(review))
    _say_noise(review)
    return EXIT_OK


def ask(args: argparse.Namespace) -> int:
    """Ask a question."""
    from counterproof_review.protocol import reviewer_steps

    review, key, _ = _mine(args, "reviewer")
    reviewer_steps.ask(review, key, args.text)
    note("entered; the author can answer with a new version of the packet and in no other way")
    return EXIT_OK


def show_arm(args: argparse.Namespace) -> int:
    """Read an arm file."""
    from counterproof_review.protocol import reviewer_steps

    review, key, _ = _mine(args, "reviewer")
    review, document = reviewer_steps.show_arm(review, key, args.arm)
    note(
        f"recorded: you are not blind to this packet any more; its level is {review.state.level} from now on"
    )
    print(json.dumps(document, indent=2, sort_keys=True))
    return EXIT_OK


def freeze(args: argparse.Namespace) -> int:
    """Freeze."""
    from counterproof_review.protocol import reviewer_steps

    review, key, _ = _mine(args, "reviewer")
    review = reviewer_steps.freeze(review, key, args.guess, args.confidence, args.deviation, args.cause)
    print(_pairs(review))
    note("frozen; nothing can be changed from now on. The author may reveal")
    return EXIT_OK


def reveal(args: argparse.Namespace) -> int:
    """Open the seal."""
    from counterproof_review.protocol import author_steps, steward_steps

    review, key, role = _mine(args, "author", "steward")
    if args.lost is not None:
        steward_steps.lost(review, key, args.lost)
        note("entered: nobody can open the seal; the review can only end UNADJUDICABLE")
    elif role == "author":
        author_steps.reveal(review, key)
        note("opened by its author")
    else:
        steward_steps.reveal(review, key)
        note("opened from escrow")
    return EXIT_OK


def challenge(args: argparse.Namespace) -> int:
    """Search for counterexamples, unless a report or a reason is given, and enter what was found."""
    from counterproof_review import challenge_commands
    from counterproof_review.protocol import reviewer_steps

    if args.report is not None and args.none is not None:
        raise InputError(
            "give --report FILE or --none REASON, not both; without either the search is made now"
        )
    review, key, _ = _mine(args, "reviewer")
    report = _report(args.report) if args.report else None
    if args.report is None and args.none is None:
        attack = reviewer_steps.attack(review)
        folder = args.dir or review.folder.root / reviewer_steps.SEARCH
        report = challenge_commands.run(args, attack.report, attack.claim, folder, attack.seed)
    review = reviewer_steps.challenge(review, key, report, args.none or "")
    body = review.state.challenge.body if review.state.challenge else {}
    note(f"entered: {body['inside']} confirmed inside the scope, {body['outside']} outside")
    return EXIT_OK


def verdict(args: argparse.Namespace) -> int:
    """Compute and sign the verdict."""
    from counterproof_review.protocol import folder, reviewer_steps
    from counterproof_review.verdict import rule

    review, key, role = _mine(args, "reviewer", "steward")
    review, found = reviewer_steps.verdict(review, key, role)
    print(f"{found['verdict']}: {found['reason']}")
    print(found["stall_sentence"])
    print(found["outputs_sentence"])
    note(f"signed as {role}; {review.folder.root / folder.VERDICT}")
    if args.gate and found["verdict"] == rule.NOT_REPLICATED:
        return EXIT_AGAINST
    return EXIT_INVALID if args.gate and not found["grows"] else EXIT_OK


def status(args: argparse.Namespace) -> int:
    """Verify everything and show where the review stands."""
    from counterproof_review.protocol import folder

    review = folder.read(args.review)
    rows = [
        (e.time_utc, e.role, e.kind, e.sha256[:16])
        for role in review.ledgers
        for e in review.ledgers[role]
        if e.kind != "witness"
    ]
    print(table(("when (informs only)", "who", "what", "entry"), sorted(rows)))
    state = review.state
    for text in state.faults:
        note(f"fault: {text}")
    note(f"blinding level {state.level}; {len(state.starts)} attempts; {len(state.questions)} questions")
    prereg_body = state.prereg.body if state.prereg else None
    if prereg_body:
        latest = state.issues[-1].body["starts"] if state.issues else prereg_body["starts"]
        note(
            f"the author's store began {latest['count']} studies, {latest['of_experiment']} of this experiment; "
            f"{latest['vanished']} are not there any more"
        )
    for signed in state.verdicts:
        note(f"the {signed.role} signed the verdict {signed.body['verdict']}")
    return EXIT_INVALID if state.faults else EXIT_OK


def export(args: argparse.Namespace) -> int:
    """Write a bundle."""
    from counterproof_review.protocol import bundle, folder

    folder.read(args.review)
    names = bundle.write(args.review, args.file)
    note(f"wrote {args.file}: {', '.join(names)}")
    return EXIT_OK


def bring(args: argparse.Namespace) -> int:
    """Take over a bundle."""
    from counterproof_review.protocol import bundle

    args.review.mkdir(parents=True, exist_ok=True)
    changed = bundle.merge(args.review, args.file)
    note(f"took over {', '.join(changed) if changed else 'nothing new'}")
    return EXIT_OK


def attach(args: argparse.Namespace) -> int:
    """Put a finished review beside its study."""
    from counterproof_review.protocol import lookup

    paths = open_store().study(args.study)
    lookup.attach(paths.folder, args.file)
    found = lookup.standing_of(paths.folder)
    print(f"{found.verdict}: {found.reason}")
    note(f"judge the study anew with it: counterproof report {args.study}")
    return EXIT_OK


def _mine(args: argparse.Namespace, *roles: str) -> Any:
    """The verified review, and the key and role to act with."""
    from counterproof_review.protocol import folder

    review = folder.read(args.review)
    key, role = folder.my_key(args.key, review.registry, roles)
    return review, key, role


def _say_noise(review: Any) -> None:
    """When the controls can only fail as it stands: that more blocks, or a quieter machine, are needed."""
    from counterproof_review.protocol import estimates, outcome
    from counterproof_review.verdict.rule import Rule

    report = outcome.packet_of(review, review.state.issues[-1].body["packet_id"])
    band = Rule(sesoi=0.0).aa_band
    if estimates.all_apart(review.state, sorted(report.arms), band):
        print(
            f"no two arms agree within {100 * band:g} % yet, although two are equal: as it stands the verdict can only be "
            "INVALID. Replay once more, on a quiet machine: all blocks of all attempts count together."
        )


def _say_regime(review: Any) -> None:
    """On another class of hardware: whether this machine's roofs are known, without which nothing will compare."""
    from counterproof.run import roofline
    from counterproof_review.packet import layout
    from counterproof_review.protocol import outcome

    accepted = review.state.accept.body
    scope = outcome.packet_of(review, accepted["packet_id"]).documents[layout.SCOPE]
    if accepted["hardware"] == scope["hardware"]:
        return
    note(
        f"the claim was measured on {scope['hardware']}; here it is {accepted['hardware']}: only ratios compare"
    )
    if roofline.known(open_store()) is None:
        note(
            "before you replay: counterproof doctor --roofline; without this machine's roofs nobody can tell whether "
            "the same bottleneck binds here, and the verdict can only be NOT_COMPARABLE"
        )


def _check_first(review: Any) -> None:
    if review.state.prereg is not None:
        raise InputError("this review has its plan already; begin another review for another study")


def _pairs(review: Any) -> str:
    """Estimates by opaque pair, as they are before anything is opened."""
    from counterproof_review.protocol import estimates, outcome

    report = outcome.packet_of(review, review.state.issues[-1].body["packet_id"])
    rows = [
        (p["numerator"], p["denominator"], p["n"], percent(p["ratio"]) if p["ratio"] is not None else "none")
        for p in estimates.pairs(review.state, sorted(report.arms))
    ]
    return table(("arm", "over arm", "blocks", "ratio"), rows)


def _report(path: Path) -> dict[str, Any]:
    from counterproof.record import canonical

    found = canonical.read_json(path)
    needed = {"confirmed", "cells_tried", "corners_not_tried", "says"}
    if not isinstance(found, dict) or not needed <= set(found):
        raise InputError(
            f"{path} is no report of a counterexample search: {', '.join(sorted(needed))} are needed"
        )
    return found
