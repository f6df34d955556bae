"""The equivalence phase: is a lossless change lossless, bit by bit, and how much does rounding alone move logits?

Both arms run the study's own prompts in the engine's `invariant` mode; tokens and logits must be equal to the
last bit. The baseline also runs them in `fast` mode, once alone and once together. How far its logits move
between these batch compositions, and between them and the fixed order of additions of `invariant` mode, is what
rounding does to it: a first differing token of the timed runs may be forgiven only at a margin below twice that.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from counterproof.errors import ExecutionError
from counterproof.run.closed_loop import LoadRows, output_row, request_row, request_status, token_sha256
from counterproof.run.targets.protocol import Logits, Target
from counterproof.workload.sealed import SealedRequest


def digests(requests: Sequence[SealedRequest], results: Sequence[Logits]) -> list[dict[str, Any]]:
    """One `equivalence_logits` event a request: sha256 over the fp32 logits of all its output tokens.

    Raises ExecutionError for a request that failed: an equality of two failures would prove nothing.
    """
    events = []
    for request, result in zip(requests, results, strict=True):
        _check(request, result)
        rows = np.ascontiguousarray(result.rows, dtype="<f4")
        events.append(
            {
                "time_ns": time.perf_counter_ns(),
                "kind": "equivalence_logits",
                "request_index": request.request_index,
                "tokens": len(result.token_ids),
                "logit_rows": int(rows.shape[0]),
                "vocabulary": int(rows.shape[1]),
                "tokens_sha256": token_sha256(result.token_ids),
                "logits_sha256": hashlib.sha256(rows.tobytes()).hexdigest(),
            }
        )
    return events


def rows(requests: Sequence[SealedRequest], results: Sequence[Logits]) -> LoadRows:
    """The phase's rows of requests.parquet and tokens.parquet, and its outputs."""
    found = LoadRows()
    for request, result in zip(requests, results, strict=True):
        out, index = result.output, request.request_index
        found.requests.append(
            request_row(request, out.token_ids, out.finish_reason, out.error)
            | {
                "scheduled_ns": result.enqueued_ns,
                "enqueued_ns": result.enqueued_ns,
                "sent_ns": result.enqueued_ns,
                "first_token_ns": result.times_ns[0],
                "last_token_ns": result.times_ns[-1],
                "done_ns": out.done_ns,
                "status": request_status(out.finish_reason),
                "tokens_computed": out.tokens_computed,
                "cached_tokens": out.cached_tokens,
            }
        )
        columns = zip(out.token_ids, result.times_ns, result.logprobs, result.margins, strict=True)
        for position, (token_id, time_ns, logprob, margin) in enumerate(columns):
            found.tokens.append(
                {
                    "request_index": index,
                    "token_index": position,
                    "token_id": token_id,
                    "time_ns": time_ns,
                    "logprob": logprob,
                    "margin": margin,
                }
            )
        found.outputs.append(output_row(request, out.token_ids, out.text, out.finish_reason))
    return found


def fast_results(
    target: Target, requests: Sequence[SealedRequest], on_done: Callable[[int], None]
) -> tuple[list[Logits], list[Logits]]:
    """The baseline's own results in fast mode: every request alone, and all of them together."""
    alone = []
    for number, request in enumerate(requests):
        alone.append(target.compute_logits([request])[0])
        on_done(number + 1)
    return alone, target.compute_logits(requests)


def rounding_event(
    requests: Sequence[SealedRequest],
    alone: Sequence[Logits],
    together: Sequence[Logits],
    invariant: Sequence[Logits],
) -> dict[str, Any]:
    """The event `batch_logit_difference`. `max_abs`: largest |difference| of a contender's logit between any two
    of the three computations; a contender is among the two best tokens of either, since only those can change
    places. Two contenders can move towards each other, hence twice this value.

    An uncached baseline multiplies whole prefixes, so that batching alone may change nothing (`batching` 0)
    although another order of additions does (`order_of_additions`).
    """
    for request, *results in zip(requests, alone, together, invariant, strict=True):
        for result in results:
            _check(request, result)
    batching = _largest(alone, together)
    order = max(_largest(alone, invariant), _largest(together, invariant))
    return {
        "time_ns": time.perf_counter_ns(),
        "kind": "batch_logit_difference",
        "max_abs": max(batching, order),
        "batching": batching,
        "order_of_additions": order,
        "requests": len(requests),
        "requests_that_diverged": sum(
            a.token_ids != b.token_ids for a, b in zip(alone, together, strict=True)
        ),
    }


def _largest(left: Sequence[Logits], right: Sequence[Logits]) -> float:
    """Largest difference of a contender's logit. Rows are compared as far as the tokens before them agree:
    afterwards the texts differ, not the arithmetic."""
    largest = 0.0
    for one, other in zip(left, right, strict=True):
        rows = min(_common(one.token_ids, other.token_ids) + 1, len(one.token_ids), len(other.token_ids))
        for a, b in zip(one.rows[:rows], other.rows[:rows], strict=True):
            contenders = np.union1d(np.argpartition(a, -2)[-2:], np.argpartition(b, -2)[-2:])
            largest = max(largest, float(np.abs(a[contenders] - b[contenders]).max()))
    return largest


def _check(request: SealedRequest, result: Logits) -> None:
    if result.error is not None or not result.token_ids:
        raise ExecutionError(
            f"request {request.request_index} failed in the equivalence phase: {result.error or 'no tokens'}"
        )
    if not np.isfinite(result.rows).all():
        raise ExecutionError(f"request {request.request_index} has logits that are not finite")


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count
