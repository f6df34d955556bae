"""The environment of a measured process: an allow-list, so that a stray variable cannot change a run."""

from __future__ import annotations

import os
import re

from intaglio.config import ThreadsConfig

_ALLOWED = re.compile(
    r"(PATH|HOME|USER|LOGNAME|LANG|LC_\w+|TZ|TMPDIR|VIRTUAL_ENV|PYTHONPATH|PYTHONHOME|LD_LIBRARY_PATH"
    r"|COUNTERPROOF_\w+|INTAGLIO_\w+|HF_HOME|HF_HUB_CACHE|HF_HUB_OFFLINE|CUDA_\w+|NVIDIA_\w+|OPENBLAS_\w+"
    r"|MALLOC_\w+|XDG_CACHE_HOME|CC|CXX)"
)


def child_environment(threads: ThreadsConfig, key_variable: str | None = None) -> dict[str, str]:
    """What a run's process gets: allowed variables, and the threads of its engine configuration.

    key_variable  the one further variable that a server target needs: the name of the one with its API key
    """
    environment = {name: value for name, value in os.environ.items() if _ALLOWED.fullmatch(name)}
    if key_variable and key_variable in os.environ:
        environment[key_variable] = os.environ[key_variable]
    count = str(threads.count or len(os.sched_getaffinity(0)))
    return environment | {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OMP_WAIT_POLICY": threads.wait_policy.upper(),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
    }
