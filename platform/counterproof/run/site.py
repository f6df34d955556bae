"""Where runs are measured: this machine, or another one that has the same code, libraries, model and hardware."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from counterproof.record import code_identity, environment, hardware, machine
from counterproof.run.executor import Progress, execute
from counterproof.run.machine_lock import lock_path, machine_lock
from counterproof.run.spec import RunSpec
from counterproof.run.targets import registry
from intaglio.config import EngineConfig, ThreadsConfig


class Site(Protocol):
    """One machine (see `record.hardware.machine_name`), on which one run is measured at a time."""

    @property
    def machine(self) -> str: ...

    def common(self, target: str, engine: EngineConfig) -> dict[str, Any]:
        """Code, machine, libraries and model as they are there now (see `record.environment`)."""
        ...

    def hardware(self, common: Mapping[str, Any]) -> str:
        """Its hardware class (see `record.hardware.class_of`), accelerators included."""
        ...

    def turn(self, on_wait: Callable[[], None]) -> AbstractContextManager[Any]:
        """Held while a run is measured, as far as the harness's own process has to hold something."""
        ...

    def execute(self, spec: RunSpec, threads: ThreadsConfig, deadline_s: float, progress: Progress) -> None:
        """As `executor.execute`: afterwards the raw results lie in `spec.folder`."""
        ...

    def cancel(self) -> None:
        """End what is being measured there, soon; `execute` then raises KeyboardInterrupt."""
        ...


class LocalSite:
    """This machine, in processes of this harness."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, str]] = {}

    @property
    def machine(self) -> str:
        return hardware.machine_name(lock_path())

    def common(self, target: str, engine: EngineConfig) -> dict[str, Any]:
        model = self._models.get(engine.model)
        if model is None:
            model = self._models[engine.model] = registry.find(target).planner(engine).model_identity()
        return environment.common_identity(code_identity.identify().as_dict(), model)

    def hardware(self, common: Mapping[str, Any]) -> str:
        return hardware.class_of({**common, **machine.gpu_identity()})

    def turn(self, on_wait: Callable[[], None]) -> AbstractContextManager[Any]:
        return machine_lock(on_wait)

    def execute(self, spec: RunSpec, threads: ThreadsConfig, deadline_s: float, progress: Progress) -> None:
        execute(spec, threads, deadline_s, progress)

    def cancel(self) -> None:
        """Nothing to do: an interrupt reaches this process itself."""
