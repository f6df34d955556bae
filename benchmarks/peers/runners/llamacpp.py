"""llama.cpp through llama-cpp-python's thin layer over its C interface: batches decoded by hand, as its server does."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.peers.runners.protocol import Batch, Prompts, Task, UnsupportedTaskError, serve

# logical and physical batch: its server's defaults
LOGICAL = 2048
PHYSICAL = 512
# ggml's numbers of types
CACHE_TYPES = {"F32": 0, "F16": 1, "BF16": 30}


class LlamaCpp:
    """One model and one context with a sequence a request."""

    def __init__(self, task: Task) -> None:
        import llama_cpp as lib

        if not task.cache:
            raise UnsupportedTaskError("no switch to run without a KV cache")
        if task.dtype not in task.prepared:
            raise UnsupportedTaskError(f"no GGUF file prepared for {task.dtype}")
        self._lib = lib
        self._share = task.prefix_cache
        lib.llama_backend_init()
        model_params = lib.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self._model = lib.llama_model_load_from_file(task.prepared[task.dtype].encode(), model_params)
        if not self._model:
            raise RuntimeError("llama.cpp cannot load the model")
        rows = task.widest()
        params = lib.llama_context_default_params()
        # one buffer for every sequence, so that sequences may share a prefix's cells
        params.kv_unified = True
        params.n_ctx = -(-(task.positions() + 16 * rows) // 256) * 256
        params.n_batch = LOGICAL
        params.n_ubatch = int(task.options.get("ubatch", PHYSICAL))
        params.n_seq_max = rows
        params.n_threads = params.n_threads_batch = task.threads
        # float16 is its default cache; a float32 model is given a float32 one
        cache = str(task.options.get("kv", "F32" if task.dtype == "fp32" else "F16"))
        params.type_k = params.type_v = CACHE_TYPES[cache]
        self._facts = {"kv cache": cache, "n_ubatch": str(params.n_ubatch)}
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self._batch = lib.llama_batch_init(LOGICAL, 0, rows)
        self._sampler = lib.llama_sampler_init_greedy()

    def run(self, prompts: Prompts, new: int) -> Batch:
        """All prompts in logical batches, then one token of every sequence a step."""
        lib = self._lib
        memory = lib.llama_get_memory(self._context)
        lib.llama_memory_clear(memory, True)
        batch = Batch.begin(len(prompts))
        shared = _common_prefix(prompts) if self._share and len(prompts) > 1 else 0
        if shared:
            for begin in range(0, shared, LOGICAL):
                end = min(begin + LOGICAL, shared)
                self._decode([(prompts[0][at], at, 0, False) for at in range(begin, end)])
            for row in range(1, len(prompts)):
                lib.llama_memory_seq_cp(memory, 0, row, 0, shared)
        pending: list[tuple[int, int, int, bool]] = []
        for row, prompt in enumerate(prompts):
            last = len(prompt) - 1
            pending += [(prompt[at], at, row, at == last) for at in range(shared, len(prompt))]
        latest = [0] * len(prompts)
        for begin in range(0, len(pending), LOGICAL):
            for row, token in self._decode(pending[begin : begin + LOGICAL]):
                latest[row] = token
                batch.put(row, [token])
        for step in range(new - 1):
            rows = [(latest[row], len(prompt) + step, row, True) for row, prompt in enumerate(prompts)]
            for row, token in self._decode(rows):
                latest[row] = token
                batch.put(row, [token])
        return batch

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> list[tuple[int, int]]:
        """Run (token, position, sequence, wants a token) entries; the greedy tokens by sequence."""
        lib, batch = self._lib, self._batch
        batch.n_tokens = len(entries)
        for index, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wanted
        if status := lib.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {status}")
        sample: Any = lib.llama_sampler_sample
        return [
            (sequence, sample(self._sampler, self._context, index))
            for index, (_, _, sequence, wanted) in enumerate(entries)
            if wanted
        ]

    def facts(self) -> dict[str, str]:
        """The instruction sets and switches of this build."""
        info = self._lib.llama_print_system_info().decode()
        on = [part.strip().removesuffix(" = 1") for part in info.split("|") if part.strip().endswith("= 1")]
        return self._facts | {"build": ", ".join(on)}


def _common_prefix(prompts: Prompts) -> int:
    """Tokens that every prompt begins with, leaving each at least one of its own."""
    limit = min(map(len, prompts)) - 1
    first = prompts[0]
    return next((at for at in range(limit) if any(p[at] != first[at] for p in prompts)), limit)


if __name__ == "__main__":
    sys.exit(serve(LlamaCpp, ("llama-cpp-python", "numpy")))
