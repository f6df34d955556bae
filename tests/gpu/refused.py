"""An engine whose products depend on a row's place: invariant mode must leave the kernels, fast mode need not.

Run in Triton's interpreter. Prints, per mode, the kernels taken and the engine's events of falling back.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import interpreter
import models
import numpy as np

TINY = Path(__file__).resolve().parents[2] / "data" / "models" / "tiny"


def use_products_that_depend_on_the_row() -> None:
    """Every other pair of rows of a product adds its inputs in the opposite order."""
    from triton.runtime import interpreter as triton_interpreter

    interpreter.use_ordered_products()
    ordered = triton_interpreter.InterpreterBuilder.create_dot

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        there = ordered(self, a, b, d, input_precision, max_num_imprecise_acc)
        flipped = triton_interpreter.TensorHandle(a.data[:, ::-1], a.dtype)
        other = triton_interpreter.TensorHandle(b.data[::-1], b.dtype)
        back = ordered(self, flipped, other, d, input_precision, max_num_imprecise_acc)
        odd = (np.arange(a.data.shape[0]) // 2 % 2 == 1)[:, None]
        return triton_interpreter.TensorHandle(np.where(odd, back.data, there.data), d.dtype.scalar)

    triton_interpreter.InterpreterBuilder.create_dot = create_dot


def main() -> None:
    use_products_that_depend_on_the_row()
    from intaglio.config import parse_overrides
    from intaglio.engine import Engine

    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = models.write(Path(name), True, "llama", vocab_size=512, bos_token_id=0, eos_token_id=1)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TINY / file, folder / file)
        for mode in ("fast", "invariant"):
            overrides = [f"model={folder}", "dtype=fp32", f"numerics.mode={mode}", "threads.count=1"]
            with Engine(parse_overrides([*overrides, "kv_cache.blocks=8"])) as engine:
                events = [event for event in engine.drain_events() if event["kind"] == "fallback"]
                found[mode] = {"path": engine.effective_config()["kernel_path"], "events": events}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
