"""There and back on a running server under load: promoted, rolled back, and held against a server that nobody touched.

Before and after, both servers answer the same probes in turns, first one changing: what the machine does meanwhile meets
both alike, and the rounds before show how far two equal servers differ anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterproof.decide.deploy import restored
from counterproof.run.deploy.endpoint import Endpoint
from counterproof.run.deploy.live_load import Answer, Client, LiveLoad, sha256_of, summary

Rounds = tuple[list[list[float]], list[list[float]]]


@dataclass(frozen=True)
class ExerciseOptions:
    """threads  requests in flight at a time
    rounds      of probes for the latency, before and after; at least 6 for an interval
    answers     how many answers the load must get from each configuration
    margin      how far the latency of the restored baseline may lie from an untouched one's
    """

    threads: int
    rounds: int
    answers: int
    margin: float
    timeout_s: float


class Exercise:
    """One promotion and one rollback.

    server, control    both serve the baseline at first; only `server` changes
    sent               bodies of the probes and of the load
    names              the fingerprints of `baseline` and `candidate`
    promote, roll_back what makes the server change over; called once each, in the midst of the load
    """

    def __init__(
        self,
        server: Endpoint,
        control: Endpoint,
        sent: Sequence[bytes],
        names: Mapping[str, str],
        promote: Callable[[], Any],
        roll_back: Callable[[], Any],
        options: ExerciseOptions,
    ) -> None:
        self._server, self._control = server, control
        self._sent = sent
        self._names = dict(names)
        self._promote, self._roll_back = promote, roll_back
        self._options = options

    def run(self) -> dict[str, Any]:
        """Everything that was seen. Raises ExecutionError when a server does not change over or answers nothing."""
        first = self._rounds()
        before, seen = self._probe(self._server), self._server.effective()
        with LiveLoad(self._server.address, self._sent, self._options.threads) as load:
            times = self._there_and_back(load)
            answers = load.stop()
        after, back = self._probe(self._server), self._server.effective()
        rounds = self._rounds()
        return {
            **summary(answers),
            **times,
            **self._of_load(answers, times),
            "configurations": self._names,
            "configuration_equal": seen == back and seen["fingerprint"] == self._names["baseline"],
            "outputs_equal": _good(before) and _good(after) and sha256_of(before) == sha256_of(after),
            "outputs_sha256": {"before": sha256_of(before), "after": sha256_of(after)},
            "output_tokens": sum(len(answer.token_ids) for answer in after),
            "latency": restored.latency_equivalence(*rounds, self._options.margin),
            "latency_ms": {"restored": rounds[0], "control": rounds[1]},
            "latency_before": restored.latency_equivalence(
                *first, self._options.margin, "latency before the promotion"
            ),
            "latency_before_ms": {"server": first[0], "control": first[1]},
        }

    def _there_and_back(self, load: LiveLoad) -> dict[str, Any]:
        """Promote and roll back under load; times from the act to the first request that meets it."""
        timeout, need = self._options.timeout_s, self._options.answers
        old, new = self._names["baseline"], self._names["candidate"]
        load.wait(lambda seen: _count(seen, old) >= need, timeout, "get answers of the baseline")
        promoted = time.perf_counter_ns()
        self._promote()
        serves = self._server.await_config(new, timeout)
        load.wait(lambda seen: _count(seen, new) >= need, timeout, "get answers of the candidate")
        rolled = time.perf_counter_ns()
        self._roll_back()
        back = self._server.await_config(old, timeout)
        load.wait(lambda seen: _count(_since(seen, rolled), old) >= need, timeout, "get answers again")
        return {
            "promote_seconds": (serves - promoted) / 1e9,
            "seconds": (back - rolled) / 1e9,
            "rolled_back_ns": rolled,
        }

    def _of_load(self, answers: Sequence[Answer], times: dict[str, Any]) -> dict[str, Any]:
        rolled = times["rolled_back_ns"]
        by_candidate = [a for a in answers if a.config == self._names["candidate"] and not a.error]
        last = max((a.done_ns for a in by_candidate), default=rolled)
        return {
            "by_candidate": len(by_candidate),
            "by_restored": _count(_since(answers, rolled), self._names["baseline"]),
            "drained_seconds": max(0.0, (last - rolled) / 1e9),
        }

    def _probe(self, server: Endpoint) -> list[Answer]:
        client = Client(server.address)
        try:
            return [client.ask(index, body) for index, body in enumerate(self._sent)]
        finally:
            client.close()

    def _rounds(self) -> Rounds:
        """Latencies in ms of each round: the server's and the control's, probe by probe in turns, first one changing,
        since a machine's own speed changes within seconds. A failed answer takes forever."""
        found: Rounds = ([], [])
        clients = [Client(one.address) for one in (self._server, self._control)]
        try:
            for client in clients:
                _ask(client, 0, self._sent[0])  # the first answer of a server is slower than any later one
            for number in range(self._options.rounds):
                took: tuple[list[float], list[float]] = ([], [])
                for index, body in enumerate(self._sent):
                    for place in (0, 1) if (number + index) % 2 == 0 else (1, 0):
                        took[place].append(_ask(clients[place], index, body))
                for place in (0, 1):
                    found[place].append(took[place])
        finally:
            for client in clients:
                client.close()
        return found


def _ask(client: Client, index: int, body: bytes) -> float:
    answer = client.ask(index, body)
    return answer.latency_ms if _good([answer]) else float("inf")


def _good(answers: Sequence[Answer]) -> bool:
    return bool(answers) and all(not a.error and a.token_ids for a in answers)


def _count(answers: Sequence[Answer], config: str) -> int:
    return sum(a.config == config and not a.error for a in answers)


def _since(answers: Sequence[Answer], moment_ns: int) -> list[Answer]:
    """Answers whose request began after a moment."""
    return [a for a in answers if a.started_ns > moment_ns]
