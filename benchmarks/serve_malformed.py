"""Thousands of requests that the server's OpenAPI document does or does not allow: typed errors only, and it lives.

    python benchmarks/serve_malformed.py --requests 10000
    python benchmarks/serve_malformed.py --requests 200 --seed 7

Requests are made by schemathesis from the server's own document, half within it and half outside, and sent to a
server in a process of its own. An answer is right when it is a result, or an error of the 4xx kind in OpenAI's shape.
After every hundred of them a good request must give the text that it gave at the beginning, and at the end the
server must hold nothing and leave with exit code 0. Every wrong answer is printed with the request that caused it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import hypothesis
import requests
import schemathesis
from benchmarks.serve_process import ServeProcess
from schemathesis import Case, GenerationMode

GOOD = {"prompt": "The import statement", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
CHECK_EVERY = 100
TIMEOUT_S = 120.0


class Judge:
    """Sends cases and keeps what was answered. faults: one line for each wrong answer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.statuses: Counter[int] = Counter()
        self.codes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.sent = 0
        self.text = self.good()

    def good(self) -> str:
        """The text of the good request."""
        answer = self.session.post(f"{self.url}/v1/completions", json=GOOD, timeout=TIMEOUT_S)
        return str(answer.json()["choices"][0]["text"]) if answer.ok else f"status {answer.status_code}"

    def send(self, case: Case) -> None:
        """Send one case and judge the answer."""
        self.sent += 1
        try:
            answer = case.call(base_url=self.url, session=self.session, timeout=TIMEOUT_S)
        except requests.exceptions.InvalidHeader:
            return  # the client library refuses to send it
        except (requests.RequestException, UnicodeError) as error:
            self._fault(case, f"{type(error).__name__}: {error}")
            return
        self.statuses[answer.status_code] += 1
        fault = self._judge(answer.status_code, answer.content)
        if fault:
            self._fault(case, fault)
        if self.sent % CHECK_EVERY == 0 and self.good() != self.text:
            self._fault(case, "after this the good request's answer is another")

    def _judge(self, status: int, content: bytes) -> str:
        if 200 <= status < 300:
            return ""
        if not 400 <= status < 500:
            return f"status {status}: {content[:200]!r}"
        try:
            error = json.loads(content)["error"]
            self.codes[error["code"]] += 1
        except (ValueError, KeyError, TypeError):
            return f"status {status} without a typed error: {content[:200]!r}"
        whole = set(error) == {"message", "type", "param", "code"} and error["message"] and error["code"]
        return "" if whole else f"status {status} with an incomplete error: {error}"

    def _fault(self, case: Case, text: str) -> None:
        self.faults.append(f"{case.method} {case.path} {ascii(case.body)[:300]} -> {text}")


def main(argv: Sequence[str] | None = None) -> int:
    """Send the requests. Returns 0 when every answer was right, else 1."""
    args = _arguments(argv)
    limits = ["--request-timeout-s", "60", f"model={args.model}", "threads.count=1", *args.overrides]
    began = time.monotonic()
    with ServeProcess(limits) as server:
        judge = Judge(server.url)
        for method, count in ((GenerationMode.POSITIVE, 0.5), (GenerationMode.NEGATIVE, 0.5)):
            _run(judge, server.url, method, round(args.requests * count), args.seed)
        told = server.told()
        gauges = told["gauges"]
        held = gauges["running"] + gauges["waiting"]
        if not told["effective"]["context_cache.enabled"]:  # contexts that were made keep their blocks
            held += gauges["kv_blocks_used"]
        exit_code = server.end()
        tracebacks = server.log.count("Traceback")
    print(f"requests: {judge.sent} in {time.monotonic() - began:.0f} s")
    print(f"statuses: {dict(sorted(judge.statuses.items()))}")
    print(f"error codes: {dict(judge.codes.most_common())}")
    print(f"held at the end: {held}, exit code: {exit_code}, tracebacks: {tracebacks}")
    print(f"wrong answers: {len(judge.faults)}")
    for fault in judge.faults[:20]:
        print(f"  {fault}")
    return 1 if judge.faults or held or exit_code or tracebacks else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="engine configuration")
    parser.add_argument("--model", default="tiny", help="a folder or a catalogue name")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_intermixed_args(argv)


def _run(judge: Judge, url: str, mode: GenerationMode, count: int, seed: int) -> None:
    """Spread `count` requests over the operations that take input."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    # Those with a body last: they can always take what another operation had no use for.
    chosen = sorted((o for o in operations if o.body or o.path_parameters), key=lambda o: bool(o.body))
    for index, operation in enumerate(chosen):
        share = round(count / (len(chosen) - index))
        count -= _exhaust(judge, operation, mode, share, seed + index)


def _exhaust(judge: Judge, operation: Any, mode: GenerationMode, count: int, seed: int) -> int:
    """Send up to `count` cases of one operation. Returns how many there were."""
    before = judge.sent
    for attempt in range(50):  # hypothesis may end a run early where it finds little that is new
        left = count - (judge.sent - before)
        if left <= 0:
            break

        @hypothesis.seed(seed + 1000 * attempt)
        @hypothesis.settings(
            max_examples=left,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def send(case: Case) -> None:
            if judge.sent - before < count:
                judge.send(case)

        try:
            send()
        except hypothesis.errors.Unsatisfiable:
            break  # nothing of this kind exists, e.g. a path parameter that is no text
    return judge.sent - before


if __name__ == "__main__":
    sys.exit(main())
