"""CTranslate2: its generator on a batch, with a callback that stamps every token."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.runners.protocol import Batch, Prompts, Task, UnsupportedTaskError, serve

TYPES = {"fp32": "float32", "bf16": "bfloat16"}


class CTranslate2:
    """One generator; the end token is one that no prompt holds and that is suppressed, so all tokens are written."""

    def __init__(self, task: Task) -> None:
        import ctranslate2

        if task.dtype not in task.prepared:
            raise UnsupportedTaskError(f"no model prepared for {task.dtype}")
        if not task.cache:
            raise UnsupportedTaskError("no switch to run without a KV cache")
        kind = TYPES[task.dtype]
        known = ctranslate2.get_supported_compute_types("cpu")
        if kind not in known:
            raise UnsupportedTaskError(f"no {kind} on this CPU; it has {', '.join(sorted(known))}")
        folder = Path(task.prepared[task.dtype])
        self._pieces: list[str] = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        self._end = len(self._pieces) - 1
        self._generator = ctranslate2.Generator(
            str(folder), device="cpu", compute_type=kind, inter_threads=1, intra_threads=task.threads
        )

    def run(self, prompts: Prompts, new: int) -> Batch:
        """The whole batch in one call."""
        texts = [[self._pieces[token] for token in prompt] for prompt in prompts]
        batch = Batch.begin(len(prompts))

        def stamp(step: Any) -> bool:
            batch.put(step.batch_id, [step.token_id])
            return False

        self._generator.generate_batch(
            texts,
            max_batch_size=0,
            beam_size=1,
            sampling_topk=1,
            max_length=new,
            min_length=new,
            end_token=[self._end],
            include_prompt_in_result=False,
            callback=stamp,
        )
        return batch

    def facts(self) -> dict[str, str]:
        """What it computes in."""
        return {"compute type": self._generator.compute_type, "batching": "static"}


if __name__ == "__main__":
    sys.exit(serve(CTranslate2, ("ctranslate2", "numpy")))
