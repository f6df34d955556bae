"""A short name for a whole configuration: equal names, equal values of every path."""

from __future__ import annotations

import hashlib
import json

from intaglio.config import EngineConfig, flatten


def fingerprint(config: EngineConfig) -> str:
    """16 hex digits of the sha256 over every path and its value. A server sends it with each answer."""
    text = json.dumps(flatten(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
