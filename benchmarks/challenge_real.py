"""Searches for counterexamples with the real engine: three with nothing planted, two with a planted corner.

    python benchmarks/challenge_real.py
    python benchmarks/challenge_real.py --model path/to/stories260k --minutes 10 --results challenge_real

One short study a model is run and packed. Of each packet variants are made whose arms are what a search is to attack:
a factor that moves nothing (so that any confirmed loss is false), and the same with a delay that strikes only in one
corner (`inject.corner`). Their manifests are made anew, as nobody else could without another root. Every variant is
searched by `counterproof packet challenge`. Fails when something is confirmed where nothing is planted, or when a
planted corner is not found and shrunk to what it is made of. Needs a tree without changes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from counterproof_review.packet import archive, canonical, layout, manifest
from counterproof_review.packet.reader import Archive

RESULTS = Path(__file__).resolve().parent / "results"
# Its scope has both corners in it: prompts of less than one block to three, eight requests at once.
STUDY = (
    *("engine.numerics.mode=invariant", "workload.requests=24", "workload.min_prompt_tokens=8"),
    *("workload.max_new_tokens=12", "workload.concurrency=8", "workload.prompt_tokens=48"),
    *("study.blocks=6", "study.reserve_blocks=0", "workload=prompt_file"),
    *("study.probes=false", "study.equivalence_requests=2", "engine.threads.count=1"),
)
TEXTS, MOST_WORDS = 2000, 30
NOTHING = "scheduler.max_waiting"
SLOTS, PROMPT, DELAY_US = 6, 16, 3000


@dataclass(frozen=True)
class Case:
    """One search. corner: what is planted; needs: the only dimension that may be left, and its value."""

    name: str
    model: str
    values: tuple[Any, Any] = (None, 100_000)
    path: str = NOTHING
    corner: str | None = None
    needs: tuple[str, int] | None = None


def cases(other: str) -> tuple[Case, ...]:
    """Three with nothing planted, two planted. `other`: a second model, or the tiny one once more."""
    crowd, edge = f"min_running={SLOTS};delay_us={DELAY_US}", f"prompt_tokens={PROMPT};delay_us={DELAY_US}"
    return (
        Case("nothing, tiny", "tiny"),
        Case("nothing, another limit, tiny", "tiny", (2048, 4096), "scheduler.token_budget"),
        Case("nothing, second model", other),
        Case("planted: crowds", "tiny", corner=crowd, needs=("concurrency", SLOTS)),
        Case("planted: prompts of one block", "tiny", corner=edge, needs=("prompt_tokens", PROMPT)),
    )


def main(argv: list[str] | None = None) -> int:
    """Run all searches and write the results. Returns 1 when one did not end as it has to."""
    args = _arguments(argv)
    rows = []
    with tempfile.TemporaryDirectory(prefix="challenge-") as folder:
        place = Path(folder)
        packets = {m: packet_of(place, m, n) for n, m in enumerate(dict.fromkeys(["tiny", args.model]))}
        for number, case in enumerate(cases(args.model)):
            row = run(case, packets[case.model], place / f"case-{number}", args)
            rows.append(row)
            print(json.dumps({k: v for k, v in row.items() if k != "report"}), flush=True)
    good = all(row["as_wanted"] for row in rows)
    document = {"as_wanted": good, "minutes": args.minutes, "searches": rows}
    RESULTS.joinpath(f"{args.results}.json").write_text(
        json.dumps(document, indent=1) + "\n", encoding="utf-8"
    )
    return 0 if good else 1


def packet_of(place: Path, model: str, number: int) -> Path:
    """The open packet of a short exploratory study of the KV cache on `model`."""
    store, name, packet = place / f"store-{number}", f"short-{number}", place / f"study-{number}.rep.zip"
    engine = ("engine=tiny", f"engine.model={model}", f"workload.file={_texts(place)}")
    _command(store, "run", "kv_cache", *engine, *STUDY, "--study", name, "--exploratory", allowed=(0, 5))
    _command(store, "packet", "build", name, "--out", str(packet))
    return packet


def _texts(place: Path) -> Path:
    """A file of prompts of all lengths: neighbouring words of Python's own documentation."""
    words = " ".join(topics.values()).split()
    starts = range(0, TEXTS * MOST_WORDS, MOST_WORDS)
    lines = [" ".join(words[start : start + 1 + number % MOST_WORDS]) for number, start in enumerate(starts)]
    path = place / "prompts.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def variant(packet: Path, target: Path, case: Case) -> Path:
    """The packet with other arms: the candidate differs in the case's path and has its corner."""
    with Archive.open(packet) as opened:
        files = {name: opened.read(name, layout.MAX_MEMBER_BYTES) for name in opened.members}
    results = canonical.decode_object(files[layout.RESULTS], layout.RESULTS)
    for role, name in results["arms"].items():
        arm = canonical.decode_object(files[layout.arm_path(name)])
        baseline, candidate = case.values
        arm["engine"] |= {"kv_cache.enabled": True, case.path: baseline}
        if role == "candidate":
            arm["engine"] |= {case.path: candidate, "inject.corner": case.corner}
        files[layout.arm_path(name)] = canonical.encode(arm)
    results["factor"] = {
        "path": f"engine.{case.path}",
        "baseline": case.values[0],
        "candidate": case.values[1],
        "lossless": True,
        "bundle": [],
        "follows": ["engine.inject.corner"] if case.corner else [],
    }
    files[layout.RESULTS] = canonical.encode(results)
    files.pop(layout.MANIFEST)
    files[layout.MANIFEST] = manifest.build(files)
    archive.write(target, files)
    return target


def run(case: Case, packet: Path, place: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Search one variant; how it went, and whether as it has to."""
    place.mkdir()
    file = variant(packet, place / "claim.rep.zip", case)
    options = ["--minutes", str(args.minutes), "--cells", str(args.cells), "--confirm", str(args.confirm)]
    options += ["--dir", str(place / "search"), "--nonce", args.nonce]
    if Path(case.model).is_dir():  # else a name, which is looked for where models usually lie
        options += ["--models", str(Path(case.model).resolve())]
    began = time.monotonic()
    _command(place / "store", "packet", "challenge", str(file), *options)
    report = json.loads((place / "search" / "report.json").read_text(encoding="utf-8"))
    flips = [one for one in report["confirmed"] if one["flip"]]
    return {
        "case": case.name,
        "planted": case.corner,
        "as_wanted": not flips if case.needs is None else any(_found(one, case.needs) for one in flips),
        "flips": len(flips),
        "smallest": flips[0]["cell"] if flips else None,
        "needed": flips[0]["needed"] if flips else None,
        "cells_tried": report["cells_tried"],
        "measured_afresh": len(report["confirmed"]),
        "seconds_measured": report["seconds"],
        "seconds": round(time.monotonic() - began, 1),
        "report": report,
    }


def _found(one: Mapping[str, Any], needs: tuple[str, int]) -> bool:
    return bool(one["inside"] and one["needed"] == [needs[0]] and one["cell"][needs[0]] == needs[1])


def _command(store: Path, *arguments: str, allowed: tuple[int, ...] = (0,)) -> None:
    """One command of counterproof; its progress goes to standard error."""
    environment = {**os.environ, "COUNTERPROOF_STORE": str(store)}
    done = subprocess.run(
        [sys.executable, "-m", "counterproof", *arguments], stdout=subprocess.DEVNULL, env=environment
    )
    if done.returncode not in allowed:
        raise SystemExit(f"counterproof {' '.join(arguments[:2])} ended with {done.returncode}")


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--model", default="tiny", help="the second model's folder (default: the tiny one again)"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for each search")
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument(
        "--confirm", type=int, default=2, help="most cells that are measured afresh, each search"
    )
    parser.add_argument("--nonce", default="5e" * 32, help="64 hex digits that set cells and loads")
    parser.add_argument("--results", default="challenge_real", help="the name of the file in results/")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
