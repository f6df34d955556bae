"""The workloads W1 to W4 as token ids: read from a file, or made from Python's own documentation topics.

w1  one prompt of 512 tokens -> 128 new            w3  16 prompts: a common prefix of 1,024 and 32 of their own -> 16
w2  16 prompts of 128 to 512 -> 64, together       w4  one prompt of 128 -> 64; as w4-nocache without a KV cache

All greedy, the end-of-sequence token ignored. A file holds `{"w1": {"new", "prompts"}, "w2": .., "w4": ..,
"w3": {"new", "groups": [{"prefix", "prompts"}]}}`; every prompt of a group begins with its prefix.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("w1", "w2", "w3", "w4", "w4-nocache")
SEED = 20261129


@dataclass(frozen=True, slots=True)
class Case:
    """What one process runs: a warm-up, then one batch submitted together."""

    workload: str
    batch: list[list[int]]
    new: int
    warm: list[list[int]]
    warm_new: int
    shared: int = 0
    cache: bool = True

    def sha256(self) -> str:
        """Identifies what is measured: the prompts and how many tokens follow each."""
        return hashlib.sha256(json.dumps([self.batch, self.new]).encode()).hexdigest()


def title(case: Case) -> str:
    """What a case runs, in words."""
    lengths = sorted(map(len, case.batch))
    span = str(lengths[0]) if lengths[0] == lengths[-1] else f"{lengths[0]} to {lengths[-1]}"
    rows = "one prompt" if len(lengths) == 1 else f"{len(lengths)} prompts together"
    shared = f" with a common prefix of {case.shared}" if case.shared else ""
    return f"{rows}, {span} tokens{shared}, {case.new} new each" + ("" if case.cache else ", no KV cache")


def case(data: dict[str, Any], workload: str, repeat: int) -> Case:
    """The case of one repeat. Each repeat of w1, w3 and w4 takes another prompt or group; the last one warms up.

    The warm-up has other tokens than what is measured, so that no engine can answer from a prefix cache.
    """
    entry = data[workload.removesuffix("-nocache")]
    new = int(entry["new"])
    if workload == "w2":
        return Case(workload, entry["prompts"], new, [prompt[::-1] for prompt in entry["prompts"]], 2)
    if workload == "w3":
        groups = entry["groups"]
        group = groups[repeat % (len(groups) - 1)]
        return Case(
            workload, group["prompts"], new, groups[-1]["prompts"][:2], 2, shared=len(group["prefix"])
        )
    prompts = entry["prompts"]
    chosen = prompts[repeat % (len(prompts) - 1)]
    return Case(workload, [chosen], new, [prompts[-1]], 8, cache=workload != "w4-nocache")


def read(path: Path) -> dict[str, Any]:
    """The workloads of a file. Raises ValueError, naming what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"cannot read workloads from {path.name}: {error}") from error
    for name in ("w1", "w2", "w4"):
        if not isinstance(data.get(name), dict) or not data[name].get("prompts"):
            raise ValueError(f"{path.name} has no prompts under {name}")
    for group in data.get("w3", {}).get("groups") or [{}]:
        prefix = group.get("prefix")
        if not prefix or any(prompt[: len(prefix)] != prefix for prompt in group.get("prompts", [[]])):
            raise ValueError(f"{path.name}: a prompt of w3 does not begin with its group's prefix")
    return dict(data)


def build(encode: Callable[[str], list[int]]) -> dict[str, Any]:
    """The same shapes from the text of Python's documentation topics. Deterministic for one Python version."""
    from pydoc_data import topics

    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    ids = encode(text)
    chosen = random.Random(SEED)

    def take(length: int) -> list[int]:
        start = chosen.randrange(len(ids) - length)
        return ids[start : start + length]

    groups = []
    for _ in range(4):
        prefix = take(1024)
        groups.append({"prefix": prefix, "prompts": [prefix + take(32) for _ in range(16)]})
    return {
        "corpus": "pydoc_data.topics",
        "seed": SEED,
        "w1": {"new": 128, "prompts": [take(512) for _ in range(8)]},
        "w2": {"new": 64, "prompts": [take(chosen.randint(128, 512)) for _ in range(16)]},
        "w3": {"new": 16, "groups": groups},
        "w4": {"new": 64, "prompts": [take(128) for _ in range(4)]},
    }
