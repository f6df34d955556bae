"""Random models and the driver of a worker, shared by the sections."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

SUPPORT = Path(__file__).resolve().parents[1] / "support"
# As SmolLM2-135M, for figures; small enough to write in a second.
SMOLLM2_SIZES = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
}
_INTERPRETED_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 67,
}


def support(name: str) -> ModuleType:
    """A module of tests/support."""
    if str(SUPPORT) not in sys.path:
        sys.path.append(str(SUPPORT))
    return __import__(name)


def vocabulary(interpreted: bool) -> int:
    return 67 if interpreted else 259


def write(folder: Path, interpreted: bool, family: str = "qwen3", **sizes: Any) -> Path:
    """A random checkpoint in `folder`."""
    small = _INTERPRETED_SIZES if interpreted else {}
    written: Path = support("random_checkpoint").write(folder, family, **(small | sizes))
    return written


def driver(folder: Path, device: torch.device, dtype: str, mode: str, blocks: int = 64) -> Any:
    """A driver of a worker on `folder`."""
    drive = support("worker_driver")
    return drive.Driver(
        drive.make_worker(folder, blocks=blocks, device=device.type, dtype=dtype, numerics__mode=mode)
    )


def path(driven: Any) -> str:
    """The kernels that a driver's worker took."""
    return str(driven.worker.describe()["kernel_path"])


def split(total: int, chunk: int) -> list[int]:
    parts: list[int] = support("worker_driver").split(total, chunk)
    return parts
