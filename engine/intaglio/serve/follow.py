"""A server that follows a file: whoever writes a configuration there decides what is served."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

from intaglio.config import EngineConfig, from_flat
from intaglio.errors import ConfigError, IntaglioError
from intaglio.serve.api_error import ApiError
from intaglio.serve.service import Service

_log = logging.getLogger("intaglio.serve")


def read_config(path: Path) -> EngineConfig:
    """The configuration in a file: a JSON object of dotted paths. Raises ConfigError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read the configuration {path.name}: {error}", field="follow") from None
    if not isinstance(values, dict):
        raise ConfigError(
            f'{path.name} must hold one object, such as {{"kv_cache.enabled": true}}', field="follow"
        )
    return from_flat(values)


class Follower:
    """Looks at a file again and again and swaps when it says something else.

    A file that cannot be read, or a configuration that does not load, is counted and logged once, and what runs
    goes on. Write the file by renaming a complete one over it.
    """

    def __init__(self, service: Service, path: Path, *, interval_s: float = 1.0) -> None:
        self._service = service
        self._path = path
        self._interval_s = interval_s
        self._seen: tuple[int, int, int] | None = None

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s)

    async def look(self) -> bool:
        """Look once. Returns whether another configuration is served now."""
        try:
            found = self._path.stat()
        except OSError:
            return False  # absent for the moment: what runs goes on
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            config = read_config(self._path)
            if config == self._service.current.config:
                return False
            # Not until the old engine has finished: a rollback may be the next thing that this file says.
            await self._service.change_over(config)
        except (IntaglioError, ApiError) as error:
            self._service.metrics.swaps["failed"] += 1
            _log.error("the configuration in %s is not served: %s", self._path.name, error)
            return False
        except (
            Exception
        ):  # memory that is not there, a library's own error: the next file is still to be seen
            self._service.metrics.swaps["failed"] += 1
            _log.exception("the configuration in %s is not served", self._path.name)
            return False
        return True
