"""Copies beside the computation: a side stream, ordered against the compute stream, for block_mover.BlockMover."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from intaglio.errors import WorkerError


class Stream(Protocol):
    """A queue of device work, as torch.cuda.Stream is one."""

    def wait_stream(self, stream: Any, /) -> None:
        """Work given to this stream from now on starts after all that `stream` holds now."""
        ...

    def synchronize(self) -> None:
        """Return when all the stream holds is done."""
        ...


class DeviceStream:
    """A block_mover.CopyStream whose copies run on `side` while the host goes on.

    current   the stream that computes, at the time of the call; use: makes a stream the one that work goes to
    copy      how bytes are moved, without waiting where the host's memory is pinned

    A copy starts after everything computed before it was asked for, so that it reads what a step wrote; `fence`
    makes what is computed later start after the copies, so that no step reads or overwrites a block too early.
    """

    def __init__(
        self,
        side: Stream,
        current: Callable[[], Stream],
        use: Callable[[Any], AbstractContextManager[object]],
        copy: Callable[[torch.Tensor, torch.Tensor], object],
    ) -> None:
        self._side = side
        self._current = current
        self._use = use
        self._copy = copy
        self._begun = False
        self.copies = 0
        self.nbytes = 0

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See CopyStream.copy. Raises WorkerError for tensors of different sizes."""
        if target.nbytes != source.nbytes:
            raise WorkerError(f"a copy of {source.nbytes} bytes cannot fill {target.nbytes}")
        if not self._begun:
            self._side.wait_stream(self._current())
            self._begun = True
        with self._use(self._side):
            self._copy(target, source)
        self.copies += 1
        self.nbytes += source.nbytes

    def fence(self) -> None:
        """See CopyStream.fence."""
        if self._begun:
            self._current().wait_stream(self._side)
            self._begun = False

    def wait(self) -> None:
        """See CopyStream.wait. Computation that was begun meanwhile is not waited for."""
        self._side.synchronize()


def device_stream(device: torch.device) -> DeviceStream:
    """Copies on a stream of their own. Raises WorkerError for a device without streams."""
    if device.type != "cuda":
        raise WorkerError(f"device={device.type} has no streams; copies there run inline")
    return DeviceStream(
        torch.cuda.Stream(device),
        lambda: torch.cuda.current_stream(device),
        torch.cuda.stream,
        lambda target, source: target.copy_(source, non_blocking=True),
    )
