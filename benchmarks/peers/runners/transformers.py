"""transformers: `generate` with SDPA attention; a batch is padded on the left, as `generate` needs it."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.peers.runners.protocol import Batch, Prompts, Task, UnsupportedTaskError, serve


class _Stamps:
    """Streamer that stamps every token of every row; the first call carries the prompts."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._started = False

    def put(self, value: Any) -> None:
        if self._started:
            for row, token in enumerate(value.reshape(-1).tolist()):
                self._batch.put(row, [token])
        self._started = True

    def end(self) -> None: ...


class Transformers:
    """One model in eager PyTorch."""

    def __init__(self, task: Task) -> None:
        import torch
        import transformers

        kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
        if task.dtype not in kinds:
            raise UnsupportedTaskError(f"no {task.dtype} kernels for a CPU: it dequantises at loading")
        torch.set_num_threads(task.threads)
        self._torch = torch
        self._cache = task.cache
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            task.model, dtype=kinds[task.dtype], attn_implementation="sdpa"
        ).eval()
        self._model.generation_config.eos_token_id = None  # every token is written
        self._model.generation_config.pad_token_id = 0

    def run(self, prompts: Prompts, new: int) -> Batch:
        """Greedy tokens, all rows in step."""
        torch = self._torch
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        batch = Batch.begin(len(prompts))
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=new,
                do_sample=False,
                use_cache=self._cache,
                streamer=_Stamps(batch),
            )
        return batch

    def facts(self) -> dict[str, str]:
        """The attention path."""
        return {"attention": "sdpa", "mode": "eager", "batching": "static, padded on the left"}


if __name__ == "__main__":
    sys.exit(serve(Transformers, ("torch", "transformers")))
