"""What a server counts, and the Prometheus text that shows it with the engine's own counters and gauges."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping

# Seconds; from a token on a fast machine to a long answer on a slow one.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
Labels = tuple[tuple[str, str], ...]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Counts per bucket of BUCKETS, and the sum, of times in seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one time."""
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def lines(self, name: str, text: str) -> Iterable[str]:
        """The histogram in Prometheus' text format."""
        yield from _head(name, "histogram", text)
        running = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self.counts, strict=True):
            running += count
            yield f'{name}_bucket{{le="{bound}"}} {running}'
        yield f"{name}_sum {self.total:.9g}"
        yield f"{name}_count {running}"


class ServerMetrics:
    """Counters of the HTTP side; used by one event loop.

    http       answers by (route, status)
    finished   requests by why they ended: stop, length, error, abort, dropped (client gone, timeout)
    cut        requests that were ended at the drain limit or by a second signal, by what drained: swap, shutdown
    late_heads connections that were ended because the headers of a request did not arrive in time
    """

    def __init__(self) -> None:
        self.http: Counter[tuple[str, int]] = Counter()
        self.finished: Counter[str] = Counter()
        self.cut: Counter[str] = Counter()
        self.disconnects = 0
        self.late_heads = 0
        self.swaps: Counter[str] = Counter()
        self.ttft = Histogram()
        self.inter_token = Histogram()
        self.e2e = Histogram()

    def departed(self) -> None:
        """A client left before its answer."""
        self.disconnects += 1

    def lines(self) -> Iterable[str]:
        """All of it in Prometheus' text format."""
        http: dict[Labels, float] = {
            (("route", route), ("status", str(status))): n for (route, status), n in self.http.items()
        }
        yield from labelled("intaglio_http_responses_total", "counter", "Answers by route and status.", http)
        ended: dict[Labels, float] = {(("reason", reason),): n for reason, n in self.finished.items()}
        yield from labelled("intaglio_requests_ended_total", "counter", "Requests by why they ended.", ended)
        text = "Clients that left before their answer."
        yield from labelled("intaglio_disconnects_total", "counter", text, {(): self.disconnects})
        cut: dict[Labels, float] = {(("by", by),): self.cut[by] for by in ("shutdown", "swap")}
        text = "Requests that were ended before they had finished, at the drain limit."
        yield from labelled("intaglio_requests_cut_total", "counter", text, cut)
        text = "Connections ended because headers did not arrive in time."
        yield from labelled("intaglio_late_heads_total", "counter", text, {(): self.late_heads})
        swaps: dict[Labels, float] = {(("result", result),): n for result, n in self.swaps.items()}
        yield from labelled("intaglio_swaps_total", "counter", "Changes of configuration.", swaps)
        yield from self.ttft.lines("intaglio_ttft_seconds", "Time to first token, from the whole body.")
        yield from self.inter_token.lines("intaglio_inter_token_seconds", "Time between tokens of a request.")
        yield from self.e2e.lines("intaglio_e2e_seconds", "Time to the last token, from the whole body.")


def labelled(name: str, kind: str, text: str, values: Mapping[Labels, float]) -> Iterable[str]:
    """One metric with its values by labels, in Prometheus' text format."""
    if not values:
        return
    yield from _head(name, kind, text)
    for labels, value in sorted(values.items()):
        inner = ",".join(f'{key}="{_escape(label)}"' for key, label in labels)
        yield f"{name}{{{inner}}} {value:.12g}" if inner else f"{name} {value:.12g}"


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
