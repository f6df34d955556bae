"""Abnormal inputs: what a target does with each, and what that does to another request that is being answered.

A companion request is on its way whenever an abnormal one arrives. Recorded of each case: the outcome, the error's
type, whether the companion still says what it says when it is alone, and how much longer its tokens took.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from counterproof.run.driver import Driver, TextTarget, Track
from counterproof.run.targets.protocol import RemoteTarget, Target
from counterproof.workload.sealed import SealedRequest

REFUSED, ANSWERED, CANCELLED = "refused", "answered", "cancelled"
FAILED, HUNG, CRASHED, NOT_MEASURED = "failed", "hung", "crashed", "not measured"
COMPANION_TOKENS = 6
BURST = 10
CASE_SECONDS = 60.0
_CONTROL = "\x00\x01\x1b[31mred\x7f‮\u200b\ufeff\r\n\t"
_SURROGATE = "half a pair: \ud800 "
_HUGE = 2**31 - 1


@dataclass(frozen=True)
class Case:
    """One abnormal input. `requests`: what is sent; `text`: sent in place of the token ids."""

    name: str
    expected: str
    requests: tuple[SealedRequest, ...]
    text: str | None = None
    same_id: bool = False
    cancel: bool = False


def cases(base: SealedRequest, limit: int | None, concurrency: int) -> list[Case]:
    """All of them, made from an ordinary request. `limit`: most tokens of prompt and output, None if not known."""
    two = replace(base, max_new_tokens=2, ignore_eos=True)
    found = [
        Case("empty", REFUSED, (replace(two, token_ids=()),)),
        Case("one token", ANSWERED, (replace(two, token_ids=base.token_ids[:1]),)),
        Case("negative id", REFUSED, (replace(two, token_ids=(*base.token_ids, -1)),)),
        Case("id beyond the vocabulary", REFUSED, (replace(two, token_ids=(*base.token_ids, _HUGE)),)),
        Case("temperature NaN", REFUSED, (replace(two, temperature=math.nan),)),
        Case("temperature infinite", REFUSED, (replace(two, temperature=math.inf),)),
        Case("temperature negative", REFUSED, (replace(two, temperature=-1.0),)),
        Case("top_p 0", REFUSED, (replace(two, top_p=0.0),)),
        Case("no new tokens", REFUSED, (replace(two, max_new_tokens=0),)),
        Case("2^31 - 1 new tokens", REFUSED, (replace(two, max_new_tokens=_HUGE),)),
        Case("control characters", ANSWERED, (two,), text=_CONTROL),
        Case("lone surrogate", REFUSED, (two,), text=_SURROGATE),
        Case("same prompt", ANSWERED, (replace(two, max_new_tokens=COMPANION_TOKENS),)),
        Case("same id", REFUSED, (two,), same_id=True),
        Case("cancelled", CANCELLED, (replace(two, max_new_tokens=_longest(base, limit)),), cancel=True),
        Case(f"burst of {BURST} times the load", ANSWERED, (two,) * (BURST * concurrency)),
    ]
    room = 0 if limit is None else limit - len(base.token_ids)
    if room > 0:
        # A prompt of that length would take minutes without a cache: the room for its answer is what reaches the
        # limit, and it is cancelled once the first token shows that it was accepted.
        found.append(
            Case("exactly at the limit", CANCELLED, (replace(two, max_new_tokens=room),), cancel=True)
        )
        found.append(Case("one over the limit", REFUSED, (replace(two, max_new_tokens=room + 1),)))
    return found


def run(target: Target, base: SealedRequest, concurrency: int, timeout_s: float) -> list[dict[str, Any]]:
    """Send every case to a target that is otherwise idle; one row each, and one for the time afterwards."""
    suite = _Suite(target, base, min(timeout_s, CASE_SECONDS))
    limit = target.effective_config().get("scheduler.max_model_len")
    rows = [suite.play(case) for case in cases(base, limit if isinstance(limit, int) else None, concurrency)]
    return [*rows, suite.afterwards()]


class _Suite:
    def __init__(self, target: Target, base: SealedRequest, timeout_s: float) -> None:
        self._target = target
        self._driver = Driver(target, timeout_s)
        self._companion = replace(base, max_new_tokens=COMPANION_TOKENS, ignore_eos=True)
        self._broken = ""
        self._alone = self._undisturbed()

    def play(self, case: Case) -> dict[str, Any]:
        """One case beside a companion."""
        if reason := self._broken or self._cannot(case):
            return _row(case.name, case.expected, NOT_MEASURED, error=reason)
        began = time.perf_counter()
        companion = Track("", 0)
        try:
            companion = self._driver.send(self._companion)
            self._driver.until(lambda: bool(companion.stamps) or companion.done)
            at = time.perf_counter_ns()
            tracks = [
                self._driver.send(request, text=case.text, name=companion.name if case.same_id else None)
                for request in case.requests
            ]
            ended = self._end(case, tracks, companion)
        except Exception as error:  # whatever it is, it must not end the study: it is what the case did
            self._broken = f"the target failed in the case '{case.name}'"
            return _row(case.name, case.expected, CRASHED, error=f"{type(error).__name__}: {error}")
        row = _row(case.name, case.expected, *_outcome(tracks, ended))
        row["seconds"] = time.perf_counter() - began
        return row | _counts(tracks) | self._effect(companion, at)

    def afterwards(self) -> dict[str, Any]:
        """The companion alone again: is the target what it was?"""
        if self._broken:
            return _row("afterwards", ANSWERED, NOT_MEASURED, error=self._broken)
        track = self._driver.send(self._companion)
        ended = self._driver.finish(track)
        return _row("afterwards", ANSWERED, *_outcome([track], ended)) | self._effect(track, 0)

    def _end(self, case: Case, tracks: Sequence[Track], companion: Track) -> bool:
        if case.cancel:
            self._driver.until(lambda: all(track.stamps or track.done for track in tracks))
            for track in tracks:
                self._driver.cancel(track)
        ended = self._driver.finish(companion, *tracks)
        if not ended and not self._driver.cancel_all():
            self._broken = f"the target does not let go of the case '{case.name}'"
        return ended

    def _cannot(self, case: Case) -> str:
        if case.text is not None and not isinstance(self._target, TextTarget):
            return "the target takes tokens only"
        if case.same_id and isinstance(self._target, RemoteTarget):
            return "a request's id is the client's own, the server does not see it"
        return ""

    def _undisturbed(self) -> Track:
        """The companion alone, the second time, when nothing is new to the target any more."""
        for _ in range(2):
            track = self._driver.send(self._companion)
            if not self._driver.finish(track) or track.reason not in ("stop", "length"):
                self._broken = f"the companion failed alone: {track.refused or track.error or 'it hung'}"
        return track

    def _effect(self, companion: Track, since_ns: int) -> dict[str, Any]:
        same = companion.answer == self._alone.answer
        return {
            "companion_identical": same,
            "companion_margin": None if same else _margin(self._alone, companion),
            "companion_gap_ms": _gap(companion, since_ns),
            "undisturbed_gap_ms": _gap(self._alone, 0),
        }


def _row(name: str, expected: str, outcome: str, error: str = "") -> dict[str, Any]:
    kind = error.split(":")[0] if ":" in error else ""
    return {
        "case": name,
        "expected": expected,
        "outcome": outcome,
        "as_expected": None if outcome == NOT_MEASURED else outcome == expected,
        "error_type": kind,
        "error": error,
    }


def _outcome(tracks: Sequence[Track], ended: bool) -> tuple[str, str]:
    """The worst that happened to one of them, and its error."""
    if not ended:
        return HUNG, "it did not end in time"
    by_reason = {"stop": ANSWERED, "length": ANSWERED, "abort": CANCELLED}
    found = [
        (REFUSED, t.refused) if t.refused is not None else _ended(by_reason.get(t.reason or "", FAILED), t)
        for t in tracks
    ]
    order = (FAILED, CANCELLED, REFUSED, ANSWERED)
    return min(found, key=lambda one: order.index(one[0]))


def _ended(outcome: str, track: Track) -> tuple[str, str]:
    """A server's refusal comes as an answer, and is one when no token came before it."""
    refusal = outcome == FAILED and not track.stamps and (track.error or "").startswith("HTTP 4")
    return REFUSED if refusal else outcome, track.error or ""


def _counts(tracks: Sequence[Track]) -> dict[str, Any]:
    return {
        "sent": len(tracks),
        "answered": sum(track.reason in ("stop", "length") for track in tracks),
        "tokens": sum(len(track.stamps) for track in tracks),
    }


def _gap(track: Track, since_ns: int) -> float | None:
    """Median time between two tokens from then on, in ms."""
    pairs = zip(track.stamps, track.stamps[1:], strict=False)
    gaps = [(after - before) / 1e6 for before, after in pairs if after >= since_ns]
    return statistics.median(gaps) if gaps else None


def _margin(alone: Track, companion: Track) -> float | None:
    """How sure the undisturbed companion was of the first token that came out otherwise."""
    pairs = enumerate(zip(alone.ids, companion.ids, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), None)
    return None if first is None else alone.margins[first]


def _longest(base: SealedRequest, limit: int | None) -> int:
    return 64 if limit is None else max(2, min(64, limit - len(base.token_ids)))
