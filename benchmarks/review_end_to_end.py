"""Whole reviews of a real engine, by commands alone, and whether each ends as it must.

    python benchmarks/review_end_to_end.py                                    the model that ships, about 8 minutes
    python benchmarks/review_end_to_end.py --model stories260k                (needs COUNTERPROOF_SHARED or ../shared)
    python benchmarks/review_end_to_end.py --model smollm2-135m --minutes 30
    python benchmarks/review_end_to_end.py --cases true noisy --blocks 8 --work /tmp/reviews --keep

The claim is that of the experiment kv_cache. Author, reviewer and steward each have a home, keys and a store; the
reviewer has no network and cannot see the others' homes, where the machine grants such walls. Four cases:

  true      the claim as it was measured                          REPLICATED
  noisy     a neighbour computes in bursts while the reviewer     INVALID
            measures
  salt      the reviewer's engine leaves out the known delay      INVALID
  inflated  the author claims what a KV cache cannot do, a quicker NOT_REPLICATED
            first token, and has it measured by an engine that
            secretly dawdles where there is no cache

The first three share one study and its packet; from ISSUE on each goes on in a copy of the three homes. The fourth
needs a study of its own. Leave the machine alone meanwhile. Exit code 1 when a case ended otherwise or did not run.
Outcomes go to benchmarks/results/review_end_to_end-MODEL.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # a script's own folder comes first on the path and would hide packages of these names
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.reviewing.neighbour import neighbour
from benchmarks.reviewing.parties import Parties, StepError, changed_code, namespace

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
STORIES = ("models", "stories260k", "hf")
EXPECTED = {"true": "REPLICATED", "noisy": "INVALID", "salt": "INVALID", "inflated": "NOT_REPLICATED"}
# What the reason must speak of: INVALID alone could have another cause.
BECAUSE = {"true": "inside the band", "noisy": "A/A", "salt": "known delay", "inflated": "at most"}
# The reviewer's machine may be too noisy for one attempt; what says so knows nothing of which arm is which.
ATTEMPTS, AGAIN = 3, "no two arms agree"
STUDY = "claim"
# Longest burst of the neighbour, seconds: some runs fall into one and some do not.
BURST_S = 15.0
ENGINE = "engine/intaglio/engine.py"
DELAY = "delay_us=config.inject.step_delay_us"
DEAF = "delay_us=0"
DAWDLING = DELAY + " + (0 if config.kv_cache.enabled else 4_000)"
FALSE_CLAIM = ("primary.metric=ttft_ms", "primary.statistic=p50")
# One thread: the steps of such small work vary by less than a hundredth with one and by a tenth with two. Invariant: a
# review wants the same tokens with and without a cache, which the rounding of the fast mode does not give at near ties.
ALWAYS = (
    "engine=tiny",
    "engine.numerics.mode=invariant",
    "engine.threads.count=1",
    "study.equivalence_requests=2",
    "study.probe_requests=3",
)
# The model, what its prompts and answers are to be, and nothing else: the rest is the experiment's own.
# Models of tenths of a millisecond a token: long prompts in fp32, so that what a client does between two requests stays
# little beside a first token; and of one length, since the work without a cache grows with the square of it.
SMALL = (
    "engine.dtype=fp32",
    "workload.prompt_tokens=480",
    "workload.min_prompt_tokens=470",
    "workload.max_new_tokens=30",
    "study.slowed_delay_us=2000",
)
SIZES: dict[str, tuple[str, ...]] = {
    "tiny": SMALL,
    "stories260k": SMALL,
    "smollm2-135m": ("workload.min_prompt_tokens=44", "workload.max_new_tokens=8"),
}
_ROW = re.compile(r"^\W*([0-9a-f]{8})\W+([0-9a-f]{8})\W.*?([+-][0-9.]+) %", re.MULTILINE)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """What all cases have in common. `model`: what is written after engine.model=."""

    name: str
    model: str
    models: Path | None
    blocks: int
    work: Path
    deadline: float
    say: Say


def main(argv: list[str] | None = None) -> int:
    """Run the cases and write what came of them. Returns the exit status."""
    args = _arguments(argv)
    began = time.monotonic()
    work = args.work or Path(tempfile.mkdtemp(prefix="reviews-"))
    work.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)

    name, model, models = _model(args.model)
    setting = Setting(name, model, models, args.blocks, work, began + 60 * args.minutes, say)
    try:
        rows = run(setting, args.cases)
    finally:
        if args.keep:
            say(f"everything is kept in {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    result = {
        "model": name,
        "experiment": "kv_cache",
        "overrides": list(_overrides(setting, setting.name)),  # a folder's place says nothing elsewhere
        "seconds": round(time.monotonic() - began, 1),
        "walls": namespace()[1:2] or ["none: only the replay's own guard kept the network off"],
        "cases": rows,
    }
    target = args.out or RESULTS / f"review_end_to_end-{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for row in rows:
        print(
            f"{row['case']:<9} {row['verdict']:<15} {'as it must' if row['as_expected'] else 'NOT AS IT MUST'}"
        )
        print(f"          {row['reason']}")
    return 0 if all(row["as_expected"] for row in rows) else 1


def run(setting: Setting, cases: Sequence[str]) -> list[dict[str, Any]]:
    """The outcomes of the cases, in the order of EXPECTED; one that failed or had no time left says why."""
    rows: list[dict[str, Any]] = []
    issued: Parties | StepError | None = None
    for case in (name for name in EXPECTED if name in cases):
        began = time.monotonic()
        try:
            if case == "inflated":
                parties = issue(setting, "inflated", FALSE_CLAIM, DAWDLING)
            else:
                issued = issued or _try(setting)
                if isinstance(issued, StepError):
                    raise issued
                parties = issued.fork(setting.work / case)
            outcome = review(setting, parties, case)
        except StepError as error:
            outcome = {"verdict": "NONE", "reason": str(error)}
        fields = {"case": case, "expected": EXPECTED[case], "seconds": round(time.monotonic() - began, 1)}
        right = outcome["verdict"] == EXPECTED[case] and BECAUSE[case] in outcome["reason"]
        rows.append({**fields, "as_expected": right, **outcome})
        setting.say(f"{case}: {outcome['verdict']}: {outcome['reason']}")
    return rows


def _try(setting: Setting) -> Parties | StepError:
    """The packet that several cases share, or why there is none."""
    try:
        return issue(setting, "honest")
    except StepError as error:
        return error


def issue(setting: Setting, name: str, claim: Sequence[str] = (), delay: str | None = None) -> Parties:
    """From keys to a packet in everybody's hands. `delay`: what stands for DELAY in the author's engine."""
    parties = Parties(setting.work / name, setting.models, setting.deadline)
    if delay is not None:
        parties.extra["author"] = _engine(setting.work / f"{name}-code", delay)
    setting.say(f"{name}: keys, registry, and a study that is registered before its first run")
    parties.set_up()
    overrides = [*_overrides(setting), *claim]
    parties.step("author", "prereg", "kv_cache", *overrides, "--study", STUDY, to=("steward",))
    parties.step("reviewer", "commit", to=("author", "steward"))
    parties.step("steward", "witness", to=("author",))
    setting.say(f"{name}: the author's study")
    parties.do("author", "resume", STUDY)
    setting.say(f"{name}: cold replay and packet")
    parties.step("author", "issue", STUDY, to=("reviewer", "steward"))
    return parties


def review(setting: Setting, parties: Parties, case: str) -> dict[str, Any]:
    """From ACCEPT to the verdict that reviewer and steward sign; returns what is worth keeping of it."""
    if case == "salt":
        parties.extra["reviewer"] = _engine(setting.work / f"{case}-code", DEAF)
    setting.say(f"{case}: the reviewer's replay")
    parties.step("reviewer", "accept", "--independent")
    with _surroundings(case):
        said = parties.step("reviewer", "replay")
    for _ in range(1, 1 if case == "noisy" else ATTEMPTS):
        if AGAIN in said:
            setting.say(f"{case}: this machine was too noisy for one attempt; another one")
            said = parties.step("reviewer", "replay")
    guess = ("--guess", _guess(said), "--confidence", "0.5")
    parties.step("reviewer", "freeze", *guess, to=("author", "steward"))
    parties.step("author", "reveal", to=("reviewer", "steward"))
    parties.step("reviewer", "challenge", "--none", "this review is about the estimate alone")
    parties.step("reviewer", "verdict", to=("steward",))
    parties.step("steward", "verdict")
    signed = [(parties.review(role) / "verdict.json").read_bytes() for role in ("reviewer", "steward")]
    if signed[0] != signed[1]:
        raise StepError("reviewer and steward hold different verdicts")
    return _outcome(json.loads(signed[0]))


@contextlib.contextmanager
def _surroundings(case: str) -> Iterator[None]:
    """What the reviewer's machine is like while it measures."""
    with neighbour(BURST_S, seed=7) if case == "noisy" else contextlib.nullcontext():
        yield


def _outcome(verdict: dict[str, Any]) -> dict[str, Any]:
    kept = (
        "verdict",
        "grows",
        "reason",
        "theta_author",
        "theta_replay",
        "bounds",
        "author_bounds",
        "difference",
    )
    kept += ("band", "sesoi", "stall_bound", "level", "guess", "attempts", "replay_hardware")
    return {name: verdict[name] for name in kept}


def _overrides(setting: Setting, model: str | None = None) -> tuple[str, ...]:
    size = SIZES.get(setting.name, ())
    return (*ALWAYS, f"engine.model={model or setting.model}", f"study.blocks={setting.blocks}", *size)


def _engine(folder: Path, delay: str) -> dict[str, str]:
    """The variables under which a party runs a copy of the engine that waits otherwise."""
    return {"PYTHONPATH": changed_code(REPOSITORY, folder, {ENGINE: (DELAY, delay)})}


def _guess(said: str) -> str:
    """The arm that comes out quickest, by the table of the replay; of two equal ones the first."""
    found = [(float(ratio), over, arm) for arm, over, ratio in _ROW.findall(said)]
    if not found:
        raise StepError(f"the replay printed no pairs of arms:\n{said}")
    lowest, highest = min(found), max(found)
    # A ratio below one says that its numerator is quick, one above that its denominator is.
    return lowest[2] if 1 + lowest[0] / 100 < 1 / (1 + highest[0] / 100) else highest[1]


def _model(given: str) -> tuple[str, str, Path | None]:
    """(short name, what the configuration calls it, the folder that replays search)."""
    if given == "stories260k":
        shared = Path(os.environ.get("COUNTERPROOF_SHARED") or REPOSITORY.parent / "shared")
        folder = shared.joinpath("data", *STORIES)
        folder = folder if folder.is_dir() else shared.joinpath(*STORIES)
        if not folder.is_dir():
            raise SystemExit(
                f"there is no {folder}; set COUNTERPROOF_SHARED to the folder with the public data"
            )
        return given, str(folder.resolve()), folder.resolve()
    if Path(given).is_dir() and given != "tiny":
        return Path(given).resolve().name, str(Path(given).resolve()), Path(given).resolve()
    store = Path(os.environ.get("COUNTERPROOF_STORE") or REPOSITORY / "store").resolve()
    named = os.environ.get("INTAGLIO_MODELS")
    return given, given, Path(named).resolve() if named else store / "models"


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny", help="tiny, stories260k, smollm2-135m or a folder")
    parser.add_argument("--cases", nargs="+", choices=tuple(EXPECTED), default=list(EXPECTED))
    parser.add_argument("--blocks", type=int, default=6, help="of each study; at least 6")
    parser.add_argument("--minutes", type=float, default=60.0, help="when to stop, done or not")
    parser.add_argument("--work", type=Path, help="a folder to work in (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="keep that folder")
    parser.add_argument("--out", type=Path, help="where the outcomes go")
    args = parser.parse_args(argv)
    if args.blocks < 6:
        parser.error(f"--blocks {args.blocks}: a verdict needs at least 6")
    if args.work and any((args.work / name).exists() for name in ("honest", *EXPECTED)):
        parser.error(f"{args.work} holds reviews already; name another folder")
    return args


if __name__ == "__main__":
    sys.exit(main())
