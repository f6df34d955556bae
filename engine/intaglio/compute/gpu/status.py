"""Whether the Triton kernels can be used on a device, how they run there, and if not why."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import torch

from intaglio.errors import ConfigError

VARIABLE = "INTAGLIO_TRITON"
AUTO, OFF, INTERPRET = "auto", "off", "interpret"
_INTERPRETER_VARIABLE = "TRITON_INTERPRET"
# Tensor cores that multiply bfloat16: Ampere.
_LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class Status:
    """`usable`, or the `reason`. `interpreted`: the kernels run in Triton's interpreter, which is for tests."""

    usable: bool
    reason: str = ""
    interpreted: bool = False
    name: str = ""


def wanted(device: torch.device) -> bool:
    """Whether a device's steps are to run on these kernels: on CUDA, and on a CPU only where a test asks for it."""
    return device.type == "cuda" or _choice() == INTERPRET


def status(device: torch.device) -> Status:
    """Probe without loading a kernel. Raises ConfigError for an unknown value of $INTAGLIO_TRITON."""
    choice = _choice()
    if choice == OFF:
        return Status(False, f"{VARIABLE}={OFF}")
    if importlib.util.find_spec("triton") is None:
        return Status(False, "the package triton is not installed; pip install 'counterproof[gpu]'")
    interpreted = os.environ.get(_INTERPRETER_VARIABLE, "0") == "1"
    if device.type != "cuda":
        if choice != INTERPRET or not interpreted:
            return Status(
                False, f"device={device.type} needs {VARIABLE}=interpret and {_INTERPRETER_VARIABLE}=1"
            )
        return Status(True, interpreted=True, name="triton-interpreter")
    if interpreted:
        return Status(True, interpreted=True, name="triton-interpreter")
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST_CAPABILITY:
        return Status(False, f"compute capability {capability[0]}.{capability[1]}; these kernels need 8.0")
    return Status(True, name=f"triton-sm{capability[0]}{capability[1]}")


def _choice() -> str:
    choice = os.environ.get(VARIABLE, AUTO) or AUTO
    if choice not in (AUTO, OFF, INTERPRET):
        raise ConfigError(f"{VARIABLE}={choice!r} must be one of {AUTO}, {OFF}, {INTERPRET}")
    return choice
