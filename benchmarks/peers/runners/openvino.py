"""OpenVINO GenAI: its continuous-batching pipeline, stepped by hand so that every token has its moment."""

from __future__ import annotations

import sys

from benchmarks.peers.runners.protocol import Batch, Prompts, Task, UnsupportedTaskError, serve

PRECISIONS = {"fp32": "f32", "bf16": "bf16", "q4_1": "bf16"}
BLOCK = 32  # positions of a KV block on a CPU


class OpenVino:
    """One pipeline over a GGUF file or a folder with OpenVINO's own format."""

    def __init__(self, task: Task) -> None:
        import openvino_genai as genai

        if not task.cache:
            raise UnsupportedTaskError("no switch to run without a KV cache")
        if task.dtype not in task.prepared:
            raise UnsupportedTaskError(f"no model prepared for {task.dtype}")
        self._genai = genai
        kind = PRECISIONS[task.dtype]
        scheduler = genai.SchedulerConfig()
        # what the batch needs and an eighth more, so that its peak memory is not that of an idle cache
        scheduler.num_kv_blocks = task.positions() * 9 // 8 // BLOCK + 2 * task.widest()
        scheduler.max_num_seqs = task.widest()
        scheduler.max_num_batched_tokens = int(task.options.get("batched_tokens", 2048))
        scheduler.enable_prefix_caching = task.prefix_cache
        self._properties = {
            "INFERENCE_PRECISION_HINT": kind,
            "KV_CACHE_PRECISION": "f32" if kind == "f32" else "bf16",
            "INFERENCE_NUM_THREADS": task.threads,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0 if task.dtype != "q4_1" else 32,
        }
        self._pipeline = genai.ContinuousBatchingPipeline(
            task.prepared[task.dtype], scheduler, "CPU", self._properties
        )
        self._next = 0

    def run(self, prompts: Prompts, new: int) -> Batch:
        import numpy as np
        import openvino

        config = self._genai.GenerationConfig()
        config.max_new_tokens = new
        config.ignore_eos = True
        config.do_sample = False
        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        batch = Batch.begin(len(prompts))
        handles = []
        for tensor in inputs:
            handles.append(self._pipeline.add_request(self._next, tensor, config))
            self._next += 1
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for index, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        batch.put(index, list(output.generated_ids))
        return batch

    def facts(self) -> dict[str, str]:
        return {name.lower(): str(value) for name, value in self._properties.items()} | {
            "pipeline": "continuous batching, paged attention"
        }


if __name__ == "__main__":
    sys.exit(serve(OpenVino, ("openvino", "openvino-genai", "openvino-tokenizers", "numpy")))
