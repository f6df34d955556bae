"""Sending single requests to a target and following each to its end, for probes. Nothing here is a timed load."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from counterproof.run.targets.protocol import Output, RefusedRequestError, Target, Token
from counterproof.workload.sealed import SealedRequest


@runtime_checkable
class TextTarget(Protocol):
    """A target that also takes a prompt as text, as a user would send it."""

    def add_text(self, request_id: str, text: str, request: SealedRequest) -> None:
        """Hand over `text` with the parameters of `request`. Raises RefusedRequestError."""


@dataclass
class Track:
    """One request on its way. `refused`: why the target did not take it; `reason`: how it ended (None: not yet)."""

    name: str
    sent_ns: int
    ids: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    margins: list[float | None] = field(default_factory=list)
    refused: str | None = None
    reason: str | None = None
    error: str | None = None
    output: Output | None = None

    @property
    def done(self) -> bool:
        return self.refused is not None or self.reason is not None

    @property
    def ttft_ms(self) -> float | None:
        """From sending to the first token or chunk."""
        return (self.stamps[0] - self.sent_ns) / 1e6 if self.stamps else None

    @property
    def answer(self) -> tuple[tuple[int, ...], str]:
        """What came back: token ids and text."""
        return tuple(self.ids), "" if self.output is None else self.output.text


class Driver:
    """Drives a target that nobody else is using. `timeout_s` bounds every wait."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._live: dict[str, Track] = {}
        self._sent = 0

    def send(self, request: SealedRequest, *, text: str | None = None, name: str | None = None) -> Track:
        """Hand a request over; one that the target refuses is done at once. Other errors go through."""
        self._sent += 1
        track = Track(name or f"p{self._sent:05d}", time.perf_counter_ns())
        try:
            if text is None:
                self._target.add(track.name, request)
            elif isinstance(self._target, TextTarget):
                self._target.add_text(track.name, text, request)
        except RefusedRequestError as error:
            track.refused = str(error)
            return track
        if track.name in self._live:
            track.reason, track.error = (
                "error",
                "duplicate_accepted: a second request with a live id was taken",
            )
            return track
        self._live[track.name] = track
        return track

    def until(self, condition: Callable[[], bool]) -> bool:
        """Step until the condition holds. False when the time was over before."""
        deadline = time.monotonic() + self._timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            for token in self._target.step():
                self._take(token)
        return True

    def finish(self, *tracks: Track) -> bool:
        """Step until all of them are done."""
        return self.until(lambda: all(track.done for track in tracks))

    def cancel(self, track: Track) -> None:
        """End a request; its end follows from a step."""
        if track.name in self._live:
            self._target.abort(track.name)

    def cancel_all(self) -> bool:
        """End everything that is still on its way. False when the target does not let go of it in time."""
        left = list(self._live.values())
        for track in left:
            self.cancel(track)
        return self.finish(*left)

    def _take(self, token: Token) -> None:
        track = self._live.get(token.request_id)
        if track is None:
            return
        if token.token_id is not None or token.characters is not None:
            track.stamps.append(token.time_ns)
            track.margins.append(token.margin)
        if token.token_id is not None:
            track.ids.append(token.token_id)
        if token.finish_reason is not None:
            del self._live[token.request_id]
            track.output = self._target.output(token.request_id)
            track.reason = token.finish_reason
            track.error = track.output.error or token.error
