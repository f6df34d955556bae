"""Many clients at once against one server, with random aborts: no leak, no wrong text, 429 instead of collapse.

    python benchmarks/serve_soak.py --clients 200 --seconds 60
    python benchmarks/serve_soak.py --model smollm2-135m --clients 32 --seconds 300 --json soak.json

Every request is one of a fixed set whose answers are computed first, each alone, by an engine without a server, in
invariant mode. Whatever a client then receives, whole or streamed, greedy or sampled, must be that answer, or the
beginning of it where the client left in the middle. At the end the server must hold no request, no block and no
connection, answer once more, and leave with exit code 0 when told to.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import httpx
from benchmarks.serve_process import ServeProcess

from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.intake.request import SamplingParams

MIB = 1 << 20
# Less patient than the server asks for, so that the pressure stays on.
LONGEST_WAIT_S = 0.5
SETTLE_S = 30.0
ABORTED_SHARE, STREAMED_SHARE = 0.25, 0.4


@dataclass(frozen=True)
class Question:
    """A request and the text that it yields alone."""

    body: dict[str, Any]
    text: str


@dataclass
class Tally:
    """What the clients saw. wrong: descriptions of answers that were not the request's own."""

    statuses: Counter[int] = field(default_factory=Counter)
    whole: int = 0
    streamed: int = 0
    left: int = 0
    tokens: int = 0
    transport_errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak. Returns 0 when nothing was wrong, else 1."""
    args = _arguments(argv)
    overrides = [
        f"model={args.model}",
        f"dtype={args.dtype}",
        "numerics.mode=invariant",
        f"threads.count={args.threads}",
        f"scheduler.max_running={args.running}",
        *args.overrides,
    ]
    questions = _questions(overrides, args)
    print(f"{len(questions)} answers computed alone", file=sys.stderr)
    tally = Tally()
    with ServeProcess(["--max-queue", str(args.queue), *overrides]) as server:
        descriptors = server.descriptors
        asyncio.run(_storm(server, questions, tally, args))
        found = asyncio.run(_settle(server, questions))
        found["descriptors_more"] = server.descriptors - descriptors
        found["exit_code"] = server.end()
        found["log"] = server.log
    report = _report(tally, found, args)
    for key, value in report.items():
        print(f"{key}: {value}")
    if args.json:
        Path(args.json).write_text(json.dumps(report | {"arguments": vars(args)}, indent=1), encoding="utf-8")
    return 1 if report["faults"] else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="engine configuration, e.g. prefix_cache.enabled=true",
    )
    add("--model", default="tiny", help="a folder or a catalogue name")
    add("--dtype", default="fp32")
    add("--clients", type=int, default=200)
    add("--seconds", type=float, default=60.0)
    add("--questions", type=int, default=48, help="distinct requests")
    add("--running", type=int, default=16, help="requests computed at once")
    add("--queue", type=int, default=64, help="requests that may wait")
    add("--threads", type=int, default=1)
    add("--seed", type=int, default=0)
    add("--rss-mib", type=float, default=48.0, help="most growth of the resident set after the first third")
    add("--json", metavar="FILE", help="also write the report to FILE")
    return parser.parse_intermixed_args(argv)


def _questions(overrides: Sequence[str], args: argparse.Namespace) -> list[Question]:
    draw = random.Random(args.seed)
    made = []
    with Engine(parse_overrides(overrides)) as engine:
        vocabulary, longest = engine.tokenizer.vocab_size, min(200, engine.max_model_len // 2)
        shared = [draw.randrange(vocabulary) for _ in range(longest // 2)]
        for number in range(args.questions):
            own = [draw.randrange(vocabulary) for _ in range(draw.randint(1, longest // 2))]
            params = SamplingParams(
                max_tokens=draw.randint(4, longest),
                temperature=draw.choice([0.0, 0.8]),
                seed=number,
                ignore_eos=draw.random() < 0.8,
            )
            prompt = shared + own if number % 2 else own
            (output,) = engine.generate([prompt], params, on_error="raise")
            fields = {key: value for key, value in asdict(params).items() if value not in (None, ())}
            made.append(Question({"prompt": prompt, **fields}, output.text))
    return made


async def _storm(
    server: ServeProcess, questions: list[Question], tally: Tally, args: argparse.Namespace
) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=args.clients)
    ends = time.monotonic() + args.seconds
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=300) as http:
        watching = asyncio.create_task(_watch(server, tally))
        clients = [
            _client(http, questions, tally, ends, random.Random(args.seed * 1000 + number))
            for number in range(args.clients)
        ]
        await asyncio.gather(*clients)
        watching.cancel()


async def _watch(server: ServeProcess, tally: Tally) -> None:
    while True:
        tally.rss.append(server.rss)
        await asyncio.sleep(0.25)


async def _client(
    http: httpx.AsyncClient, questions: list[Question], tally: Tally, ends: float, draw: random.Random
) -> None:
    while time.monotonic() < ends:
        question, kind = draw.choice(questions), draw.random()
        try:
            if kind < ABORTED_SHARE:
                wait = await _leave(http, question, tally, draw)
            elif kind < ABORTED_SHARE + STREAMED_SHARE:
                wait = await _stream(http, question, tally, events=None)
            else:
                wait = await _whole(http, question, tally)
        except httpx.HTTPError as error:
            tally.transport_errors[type(error).__name__] += 1
            wait = 0.1
        if wait:
            await asyncio.sleep(min(wait, LONGEST_WAIT_S, max(0.0, ends - time.monotonic())))


async def _whole(http: httpx.AsyncClient, question: Question, tally: Tally) -> float:
    answer = await http.post("/v1/completions", json=question.body)
    tally.statuses[answer.status_code] += 1
    if answer.status_code != 200:
        return _refused(answer, tally)
    document = answer.json()
    tally.whole += 1
    tally.tokens += document["usage"]["completion_tokens"]
    if document["choices"][0]["text"] != question.text:
        tally.wrong.append(f"whole answer to seed {question.body['seed']}")
    return 0.0


async def _leave(http: httpx.AsyncClient, question: Question, tally: Tally, draw: random.Random) -> float:
    """Go away: after some events, or at some moment whatever happens then."""
    if draw.random() < 0.5:
        return await _stream(http, question, tally, events=draw.randint(0, 8))
    try:
        async with asyncio.timeout(draw.random() * 0.5):
            return await _whole(http, question, tally)
    except TimeoutError:
        tally.left += 1
    return 0.0


async def _stream(http: httpx.AsyncClient, question: Question, tally: Tally, *, events: int | None) -> float:
    """Read a stream to its end, or leave it after `events`."""
    text, ended, seen = "", False, 0
    async with http.stream("POST", "/v1/completions", json={**question.body, "stream": True}) as answer:
        tally.statuses[answer.status_code] += 1
        if answer.status_code != 200:
            await answer.aread()
            return _refused(answer, tally)
        async for line in answer.aiter_lines():
            if seen == events:
                break
            if not line.startswith("data: "):
                continue
            ended = line == "data: [DONE]"
            if not ended:
                text += json.loads(line[6:])["choices"][0]["text"]
                seen += 1
    tally.tokens += seen
    tally.left += not ended
    tally.streamed += ended
    if not (text == question.text if ended else question.text.startswith(text)):
        tally.wrong.append(f"stream of seed {question.body['seed']}")
    if not ended and events is None:
        tally.wrong.append(f"stream of seed {question.body['seed']} stopped short")
    return 0.0


def _refused(answer: httpx.Response, tally: Tally) -> float:
    error = answer.json()["error"]
    if answer.status_code != 429 or not error["code"]:
        tally.wrong.append(f"{answer.status_code} {error['message'][:100]}")
        return 0.1
    return float(answer.headers["retry-after"])


async def _settle(server: ServeProcess, questions: list[Question]) -> dict[str, Any]:
    """What the server still holds once its clients have gone."""
    told = await asyncio.to_thread(server.told)
    ends = time.monotonic() + SETTLE_S
    while _held(told["gauges"]) and time.monotonic() < ends:
        await asyncio.sleep(0.1)
        told = await asyncio.to_thread(server.told)
    disconnects = await asyncio.to_thread(server.disconnects)
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as http:
        last = Tally()
        await _whole(http, questions[0], last)
    while server.connections and time.monotonic() < ends:
        await asyncio.sleep(0.05)
    return {
        "gauges": told["gauges"],
        "counters": told["counters"],
        "disconnects": disconnects,
        "connections": server.connections,
        "last_answer": "right" if last.whole and not last.wrong else "wrong",
    }


def _held(gauges: dict[str, int]) -> int:
    return gauges["running"] + gauges["waiting"] + gauges["kv_blocks_used"]


def _report(tally: Tally, found: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    third = max(1, len(tally.rss) // 3)
    early, late = (
        statistics.median(tally.rss[third : 2 * third] or tally.rss),
        statistics.median(tally.rss[-third:]),
    )
    growth = (late - early) / MIB
    gauges, counters = found["gauges"], found["counters"]
    faults = {
        "wrong answers": len(tally.wrong),
        "transport errors": sum(tally.transport_errors.values()),
        "requests or blocks left": _held(gauges),
        "blocks not given back": counters["blocks_allocated"]
        - counters["blocks_freed"]
        - gauges.get("kv_blocks_cached", 0),
        "connections left": found["connections"],
        "descriptors left": max(0, found["descriptors_more"] - 8),
        "resident set grew": growth > args.rss_mib,
        "last answer wrong": found["last_answer"] != "right",
        "exit code": found["exit_code"],
        "tracebacks": found["log"].count("Traceback"),
        "nothing was refused": args.clients > args.running + args.queue and not tally.statuses[429],
        "nobody left": found["disconnects"] == 0 or counters["requests_aborted"] == 0,
    }
    return {
        "statuses": dict(sorted(tally.statuses.items())),
        "answers": {"whole": tally.whole, "streamed": tally.streamed, "left": tally.left},
        "disconnects_seen": found["disconnects"],
        "tokens_per_s": round(tally.tokens / args.seconds, 1),
        "counters": {key: value for key, value in counters.items() if value},
        "rss_mib": {"early": round(early / MIB, 1), "late": round(late / MIB, 1), "growth": round(growth, 1)},
        "left_on_the_server": {**gauges, "connections": found["connections"]},
        "descriptors_more": found["descriptors_more"],
        "wrong": tally.wrong[:5],
        "transport_errors": dict(tally.transport_errors),
        "faults": {name: value for name, value in faults.items() if value},
    }


if __name__ == "__main__":
    sys.exit(main())
