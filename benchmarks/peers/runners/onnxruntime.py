"""ONNX Runtime GenAI: its generator on a batch, padded on the right, one step at a time."""

from __future__ import annotations

import json
import sys

from benchmarks.peers.runners.protocol import Batch, Prompts, Task, UnsupportedTaskError, serve


class OnnxRuntime:
    """One model; padding and end are tokens that no prompt holds, so that every token is written and seen."""

    def __init__(self, task: Task) -> None:
        import onnxruntime_genai as genai

        if task.dtype not in task.prepared:
            raise UnsupportedTaskError(f"its model builder has no {task.dtype} for a CPU")
        if not task.cache:
            raise UnsupportedTaskError("no switch to run without a KV cache")
        self._genai = genai
        used = {token for prompts in [task.warm, *task.batches] for prompt in prompts for token in prompt}
        vocabulary = json.loads(_config(task))["model"]["vocab_size"]
        free = [token for token in range(vocabulary - 1, 0, -1) if token not in used][:2]
        self._padding = free[0]
        config = genai.Config(task.prepared[task.dtype])
        session = {"intra_op_num_threads": task.threads}
        config.overlay(
            json.dumps(
                {
                    "model": {
                        "pad_token_id": free[0],
                        "eos_token_id": free[1],
                        "decoder": {"session_options": session},
                    }
                }
            )
        )
        self._model = genai.Model(config)

    def run(self, prompts: Prompts, new: int) -> Batch:
        """All rows in step."""
        import numpy as np

        width = max(map(len, prompts))
        ids = np.array(
            [prompt + [self._padding] * (width - len(prompt)) for prompt in prompts], dtype=np.int32
        )
        params = self._genai.GeneratorParams(self._model)
        # min_length keeps the end token's stand-in from being chosen
        params.set_search_options(
            max_length=width + new, min_length=width + new, batch_size=len(prompts), do_sample=False
        )
        batch = Batch.begin(len(prompts))
        generator = self._genai.Generator(self._model, params)
        generator.append_tokens(ids if len(prompts) > 1 else ids[0])
        for _ in range(new):
            generator.generate_next_token()
            for row, token in enumerate(generator.get_next_tokens()):
                batch.put(row, [int(token)])
        return batch

    def facts(self) -> dict[str, str]:
        """How it batches."""
        return {"batching": "static, padded on the right", "provider": "cpu"}


def _config(task: Task) -> str:
    from pathlib import Path

    return (Path(task.prepared[task.dtype]) / "genai_config.json").read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(serve(OnnxRuntime, ("onnxruntime-genai", "onnxruntime", "numpy")))
