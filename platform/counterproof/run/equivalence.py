"""The equivalence phase: is a lossless change lossless, bit by bit, and how much does batching alone move logits?

Both arms run the study's own prompts in the engine's `invariant` mode; tokens and logits must be equal to the
last bit. In `fast` mode the baseline runs them once alone and once together: the largest difference of a logit
is what the timed runs may be forgiven at a near tie.
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


def batch_difference(
    target: Target, requests: Sequence[SealedRequest], on_done: Callable[[int], None]
) -> dict[str, Any]:
    """Run every request alone and then all together; the largest |difference| of a logit between the two.

    Rows are compared as far as the tokens before them agree: afterwards the texts differ, not the arithmetic.
    """
    alone = []
    for number, request in enumerate(requests):
        alone.append(target.compute_logits([request])[0])
        on_done(number + 1)
    together = target.compute_logits(requests)
    largest, compared, diverged = 0.0, 0, 0
    for request, one, many in zip(requests, alone, together, strict=True):
        _check(request, one)
        _check(request, many)
        same = _common(one.token_ids, many.token_ids)
        rows = min(same + 1, len(one.token_ids), len(many.token_ids))
        largest = max(largest, float(np.abs(one.rows[:rows] - many.rows[:rows]).max()))
        compared += rows
        diverged += one.token_ids != many.token_ids
    return {
        "time_ns": time.perf_counter_ns(),
        "kind": "batch_logit_difference",
        "mode": "fast",
        "max_abs": largest,
        "rows": compared,
        "requests": len(requests),
        "requests_that_diverged": diverged,
    }


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
