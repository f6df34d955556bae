"""Build the sample of reviews/sample anew: a real study on the model that ships, its open packet, and a whole review.

  python reviews/build_sample.py FOLDER                 all steps, about four minutes on an idle machine
  python reviews/build_sample.py FOLDER --step replay   one step, to go on after a failure

FOLDER keeps three homes, a store and what went wrong, if anything; the checkout must have no uncommitted changes, for a
study refuses others. All parties sign with the sample keys of `counterproof_review.trust.sample`, which everybody has.
What is measured is measured: a sample whose evidence is not valid or whose verdict is not REPLICATED is not written.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from counterproof_review.packet import labels
from counterproof_review.packet.layout import ARMS
from counterproof_review.packet.reader import Archive
from counterproof_review.trust import keys, private, registry, sample

HERE = Path(__file__).resolve().parent
SAMPLE = HERE / "sample"
STUDY = "sample"
PACKET, REVIEW = "sample.rep.zip", "review.zip"
SEARCH = "none: the sample shows a review's form, and no search was made for it"
OVERRIDES = (
    "engine=tiny",
    # Both kinds of kernels know this mode: the compiled ones, and torch's where there is no compiler.
    "engine.numerics.mode=invariant",
    "engine.threads.count=1",
    # Each prompt is filled up to its limit, so that a first token takes far longer than the client's own queue.
    "workload=passages_zh",
    "workload.prompt_tokens=360",
    "study.slowed_delay_us=1500",
)
MOST_BYTES = 300_000


class SampleError(Exception):
    """The sample could not be built; the message says what to look at."""


def main() -> int:
    """Build what the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to work; kept")
    parser.add_argument("--step", choices=tuple(STEPS), help="only this step")
    args = parser.parse_args()
    place = args.folder.resolve()
    for name, step in STEPS.items():
        if args.step in (None, name):
            print(f"== {name}", flush=True)
            try:
                step(place)
            except SampleError as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
    return 0


def prepare(place: Path) -> None:
    """Homes, keys, a registry, and the plan of the study; its first run comes after the steward has witnessed it."""
    place.mkdir(parents=True)
    steward = sample.key("steward")
    for role in sample.ROLES:
        home = place / role
        home.mkdir()
        os.environ["COUNTERPROOF_KEYS"] = str(home / "keys")
        keys.store(sample.key(role))
        private.trust(steward.key_id)
    people = [(sample.key(role).public(), role) for role in ("author", "reviewer")]
    (place / "registry.dsse.json").write_bytes(registry.create(steward, people))
    for role in sample.ROLES:
        _do(place, role, "review", "init", f"of-{role}", "--registry", "registry.dsse.json")
    _step(place, "author", "prereg", "kv_cache", *OVERRIDES, "--study", STUDY)
    _step(place, "reviewer", "commit")
    _step(place, "steward", "witness")


def study(place: Path) -> None:
    """Measure. The one step besides `replay` whose time counts: leave the machine alone meanwhile."""
    _do(place, "author", "resume", STUDY)


def issue(place: Path) -> None:
    """The open packet, then the sealed one after its cold replay."""
    comparison = json.loads((place / "store" / "studies" / STUDY / "comparison.json").read_text())
    if comparison["valid"] is not True:
        raise SampleError("the study's evidence is not valid; begin again on a quieter machine")
    file = place / "packet.key.json"
    file.unlink(missing_ok=True)
    labels.write_keys(file, sample.packet_keys())
    _do(place, "author", "packet", "build", STUDY, "--out", PACKET, "--keys", file.name)
    _step(place, "author", "issue", STUDY)


def replay(place: Path) -> None:
    """The reviewer accepts and measures."""
    _step(place, "reviewer", "accept", "--independent")
    _step(place, "reviewer", "replay")


def finish(place: Path) -> None:
    """From the freeze to both signatures."""
    _step(place, "reviewer", "freeze", "--guess", _arm(place), "--confidence", "0.25")
    _step(place, "author", "reveal")
    _step(place, "reviewer", "challenge", "--none", SEARCH)
    _step(place, "reviewer", "verdict")
    _step(place, "steward", "verdict")
    _do(place, "steward", "review", "export", REVIEW, "--review", "of-steward")


def publish(place: Path) -> None:
    """Put both files into reviews/sample, if they are worth it."""
    verdict = json.loads((place / "of-steward" / "verdict.json").read_text())
    if verdict["verdict"] != "REPLICATED":
        raise SampleError(f"the verdict is {verdict['verdict']}: {verdict['reason']}")
    SAMPLE.mkdir(exist_ok=True)
    for name in (PACKET, REVIEW):
        size = (place / name).stat().st_size
        if size > MOST_BYTES:
            raise SampleError(f"{name} has {size} bytes, more than a sample may have ({MOST_BYTES})")
        shutil.copyfile(place / name, SAMPLE / name)
        print(f"wrote {SAMPLE / name}: {size} bytes; commit it")


def _arm(place: Path) -> str:
    """The first opaque name of the packet: a guess that knows nothing."""
    (packet,) = (place / "of-reviewer" / "packets").glob("*.rep.zip")
    with Archive.open(packet) as archive:
        return (
            min(name for name in archive.members if name.startswith(ARMS))
            .removeprefix(ARMS)
            .removesuffix(".json")
        )


def _step(place: Path, role: str, name: str, *arguments: str) -> None:
    """One step of one party, then its bundle to the others."""
    _do(place, role, "review", name, *arguments, "--review", f"of-{role}")
    bundle = f"from-{role}.zip"
    _do(place, role, "review", "export", bundle, "--review", f"of-{role}")
    for other in sample.ROLES:
        if other != role:
            _do(place, other, "review", "import", bundle, "--review", f"of-{other}")


def _do(place: Path, role: str, *command: str) -> None:
    """One command as one party, in the folder of all. Raises SampleError when it fails."""
    print(f"{role}: counterproof {' '.join(command)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "counterproof", *command], cwd=place, env=_environment(place, role)
    )
    if done.returncode:
        raise SampleError(f"counterproof {command[0]} ended with exit code {done.returncode}, see above")


def _environment(place: Path, role: str) -> dict[str, str]:
    """A home, keys and a user of one's own; git's names are the sample's, not those of whoever builds it."""
    home = place / role
    return {
        **os.environ,
        "HOME": str(home),
        "COUNTERPROOF_KEYS": str(home / "keys"),
        "COUNTERPROOF_STORE": str(place / "store"),
        "USER": f"sample-{role}",
        "LOGNAME": f"sample-{role}",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }


STEPS: Mapping[str, Callable[[Path], None]] = {
    "prepare": prepare,
    "study": study,
    "issue": issue,
    "replay": replay,
    "finish": finish,
    "publish": publish,
}

if __name__ == "__main__":
    sys.exit(main())
