"""Rank 0's side of the worker boundary: sends a plan, takes the answer, checks that it answers that plan."""

from __future__ import annotations

from pathlib import Path

import torch

from intaglio.cluster.worker import Description, Worker
from intaglio.config import EngineConfig
from intaglio.errors import WorkerError
from intaglio.intake.step_plan import StepPlan, StepResult


class Runner:
    """Owns the workers of one engine; here rank 0's alone, in this process.

    The interface passes plain data only, so that a worker may live elsewhere without a change to its callers.
    """

    def __init__(self, config: EngineConfig, model_folder: Path, *, known_tokens: int | None = None) -> None:
        """known_tokens: see Worker."""
        self._worker = Worker(config, model_folder, known_tokens=known_tokens)
        self._threads = torch.get_num_threads()

    @property
    def worker(self) -> Worker:
        """Rank 0's worker (tests and memory accounting)."""
        return self._worker

    def describe(self) -> Description:
        """See Worker.describe."""
        return self._worker.describe()

    def configure_kv(self, blocks: int) -> None:
        """See Worker.configure_kv."""
        self._worker.configure_kv(blocks)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. Raises WorkerError when the answer is not to this plan or not row for row."""
        # The count belongs to the process and the thread: another engine, or who drives this one, may have
        # left a different one, and then neither effective_config nor the self-test's proof would hold.
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        result = self._worker.execute(plan)
        if result.step != plan.step or result.digest != plan.digest():
            raise WorkerError(f"the answer to step {plan.step} carries step {result.step} or another digest")
        if [row.request_id for row in result.rows] != [row.request_id for row in plan.rows]:
            raise WorkerError(f"the answer to step {plan.step} is not row for row the plan's")
        return result

    def device_memory(self) -> dict[str, int]:
        """See Worker.device_memory."""
        return self._worker.device_memory()

    def close(self) -> None:
        self._worker.close()
