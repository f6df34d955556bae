"""intaglio: the engine of this repository, one contestant a numerics mode."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from benchmarks.peers.runners.protocol import Batch, Prompts, Task, UnsupportedTaskError, serve

if TYPE_CHECKING:
    from intaglio.config import EngineConfig


_SHARED, _COMPUTED = "shared", "computed for every request"


class Intaglio:
    """One engine; `options` are engine settings by dotted path, e.g. {"numerics.mode": "invariant"}."""

    def __init__(self, task: Task) -> None:
        from intaglio.config import WEIGHT_FORMATS, EngineConfig, flatten, from_flat
        from intaglio.engine import Engine
        from intaglio.errors import IntaglioError

        known = flatten(EngineConfig())
        values: dict[str, Any] = {
            "model": task.model,
            "dtype": task.dtype,
            "kv_cache.enabled": task.cache,
            "threads.count": task.threads,
            "threads.wait_policy": task.wait_policy,
            "scheduler.max_running": task.widest(),
        }
        if task.dtype in WEIGHT_FORMATS:  # a format of the weights alone: everything else is bf16
            values |= {"dtype": "bf16", "weights.format": task.dtype}
        values |= task.options
        missing = sorted(set(values) - set(known))
        if missing:
            raise UnsupportedTaskError(f"this version has no setting {', '.join(missing)}")
        self._sharing = "no prefix to share"
        try:
            config = from_flat(values)
            if "prefix_cache.enabled" in task.options:
                self._sharing = _SHARED if config.prefix_cache.enabled else _COMPUTED
            elif task.prefix_cache:
                config, self._sharing = _with_prefix_cache(config)
        except IntaglioError as error:
            raise UnsupportedTaskError(str(error)) from error
        self._engine = Engine(config)

    def run(self, prompts: Prompts, new: int) -> Batch:
        """Greedy tokens by stepping the engine until it has no work."""
        from intaglio.intake.request import SamplingParams

        params = SamplingParams(max_tokens=new, ignore_eos=True)
        batch = Batch.begin(len(prompts))
        rows = {self._engine.add(prompt, params): index for index, prompt in enumerate(prompts)}
        while self._engine.has_work:
            for event in self._engine.step():
                if event.error is not None:
                    raise event.error
                if event.token_id is not None:
                    batch.put(rows[event.request_id], [event.token_id])
        for name in rows:
            self._engine.output(name)
        return batch

    def facts(self) -> dict[str, str]:
        """What the engine says it runs."""
        effective = self._engine.effective_config()
        keys = ("kernel_path", "numerics.mode", "weights.format", "kv_cache.format")
        return {key: str(effective[key]) for key in keys} | {"prefix": self._sharing}


def _with_prefix_cache(config: EngineConfig) -> tuple[EngineConfig, str]:
    """The configuration with prefixes shared where this version can do that, and which it is."""
    from intaglio.config import from_flat
    from intaglio.errors import ConfigError

    try:
        return from_flat({"prefix_cache.enabled": True}, config), _SHARED
    except ConfigError:
        return config, _COMPUTED


if __name__ == "__main__":
    sys.exit(serve(Intaglio, ("torch", "numpy", "counterproof")))
