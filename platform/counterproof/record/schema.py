"""The Parquet tables of a run, column by column. All times are nanoseconds of one monotonic clock.

NULL means "not measured" or "does not exist" and is never replaced by a number.
"""

from __future__ import annotations

import pyarrow as pa

REQUESTS = pa.schema(
    [
        ("request_index", pa.int32()),  # position in the sealed workload
        ("prompt_tokens", pa.int32()),
        ("max_new_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("scheduled_ns", pa.int64()),  # closed loop: when the slot before it became free
        ("enqueued_ns", pa.int64()),
        ("sent_ns", pa.int64()),
        ("first_token_ns", pa.int64()),
        ("last_token_ns", pa.int64()),
        ("done_ns", pa.int64()),
        ("status", pa.string()),  # ok, error, aborted, timeout
        ("finish_reason", pa.string()),
        ("error", pa.string()),
        ("tokens_computed", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("prompt_sha256", pa.string()),
        ("output_sha256", pa.string()),  # over the output token ids, little-endian int32
    ]
)

TOKENS = pa.schema(
    [
        ("request_index", pa.int32()),
        ("token_index", pa.int32()),
        ("token_id", pa.int32()),
        ("time_ns", pa.int64()),
        ("logprob", pa.float64()),
        ("margin", pa.float64()),  # raw logit of the best token minus the second best
    ]
)

STAGES = pa.schema(
    [
        ("step", pa.int32()),  # engine step, NULL outside steps
        ("request_index", pa.int32()),
        ("stage", pa.string()),  # input, state, compute, output
        (
            "phase",
            pa.string(),
        ),  # queue, tokenize | lookup, allocate | prefill, decode | sample, detokenize, stream
        ("start_ns", pa.int64()),
        ("wall_ns", pa.int64()),  # time that passed for this request (a shared step counts whole for each)
        ("share_ns", pa.int64()),  # its part of the shared time, by computed tokens
        ("tokens", pa.int64()),
        ("bytes", pa.int64()),
        ("flops", pa.int64()),
    ]
)

RESOURCES = pa.schema(
    [
        ("time_ns", pa.int64()),
        ("source", pa.string()),  # sampler (another process), engine (its own gauges), client (of a server)
        ("rss_bytes", pa.int64()),
        ("cpu_seconds", pa.float64()),
        ("threads", pa.int32()),
        ("load1", pa.float64()),
        ("cpu_mhz", pa.float64()),
        ("gpu_allocated_bytes", pa.int64()),
        ("gpu_reserved_bytes", pa.int64()),
        ("gpu_used_bytes", pa.int64()),
        ("running", pa.int32()),
        ("waiting", pa.int32()),
        ("kv_blocks_used", pa.int32()),
        ("kv_blocks_total", pa.int32()),
        ("kv_bytes_used", pa.int64()),
    ]
)

CHUNKS = pa.schema(
    [
        ("request_index", pa.int32()),
        ("chunk_index", pa.int32()),
        ("time_ns", pa.int64()),  # when its bytes had arrived at the client
        ("characters", pa.int32()),
        ("tokens", pa.int32()),  # NULL where the server does not say how many it holds
    ]
)

TABLES: dict[str, pa.Schema] = {
    "requests.parquet": REQUESTS,
    "tokens.parquet": TOKENS,
    "stages.parquet": STAGES,
    "resources.parquet": RESOURCES,
}

# Only in the record of a run whose target is a server.
SERVER_TABLES: dict[str, pa.Schema] = {"chunks.parquet": CHUNKS}

ARMS = ("baseline", "candidate", "again", "slowed")
