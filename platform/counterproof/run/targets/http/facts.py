"""What a server says of itself: configuration, counters, model. What it does not say is left out and named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterproof.errors import ExecutionError, SetupError
from counterproof.plan.compose import flatten
from counterproof.plan.schema import ServerConfig
from counterproof.run.targets.http import fetch
from counterproof.run.targets.http.pool import Address

NAMED = ("kernel_path", "threads.count", "threads.wait_policy")


class ServerFacts:
    """Asked for when needed, never during the load."""

    def __init__(self, address: Address, headers: Mapping[str, str], server: ServerConfig) -> None:
        self._address = address
        self._headers = headers
        self._server = server
        self._model = server.model

    def model(self) -> str:
        """The name to send: the configured one, else the first that the server lists. Raises SetupError.

        Asked for once: a server that dies under the load is a failed run, and not one that was set up wrongly.
        """
        if self._model:
            return self._model
        try:
            listed = fetch.get_json(self._address, "/v1/models", self._headers)
            self._model = str(listed["data"][0]["id"])
            return self._model
        except (ExecutionError, KeyError, IndexError, TypeError) as error:
            raise SetupError(
                f"the server does not list its models: {error}",
                details=["set server.model to the name it has"],
            ) from None

    def effective(self) -> dict[str, Any]:
        """Flat; the server's own word where it has a document of it, and how it was started."""
        found: dict[str, Any] = {}
        if self._server.effective_path:
            document = fetch.get_json(self._address, self._server.effective_path, self._headers)
            inner = document.get("effective", document) if isinstance(document, dict) else {}
            found = {path: _plain(value) for path, value in flatten(inner) if path}
        found.setdefault("model", self.model())
        if (version := self._version()) is not None:
            found["server.version"] = version
        # As it was written, before the port was filled in: that differs from run to run.
        found["server.command"] = " ".join(self._server.command)
        found["server.variables"] = " ".join(sorted(self._server.variables))
        found["server.api"] = f"{self._server.api}/{self._server.prompts}/{self._server.dialect}"
        return found

    def _version(self) -> str | None:
        """What `/version` says, where there is such a document (vLLM has one)."""
        try:
            document = fetch.get_json(self._address, "/version", self._headers)
        except ExecutionError:
            return None
        version = document.get("version") if isinstance(document, dict) else None
        return None if version is None else str(version)

    def counters(self) -> dict[str, int]:
        """The engine's counters beside its effective configuration; {} where there are none."""
        if not self._server.effective_path:
            return {}
        document = fetch.get_json(self._address, self._server.effective_path, self._headers)
        found = document.get("counters") if isinstance(document, dict) else None
        if not isinstance(found, dict):
            return {}
        return {str(name): value for name, value in found.items() if isinstance(value, int)}

    def identity(self) -> dict[str, Any]:
        """Fields that only the server knows, as far as it says them."""
        effective = self.effective()
        return {name: effective[name] for name in NAMED if name in effective}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
