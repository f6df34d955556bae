"""The work that a device has been given and not yet done."""

from __future__ import annotations

import torch


def settle(device: torch.device) -> None:
    """Wait until what was launched on the device's current stream is done; a CPU has nothing outstanding.

    Without it the time of the layers would be counted where somebody first looks at a result.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
