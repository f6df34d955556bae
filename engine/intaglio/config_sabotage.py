"""A feature that the configuration says is on, and that is off under the hood: the negative control of a study.

`inject.sabotage` holds `path=value` pairs with semicolons, e.g. `kv_cache.enabled=false`. The engine is built with
these values whatever the configuration says of the same paths, and says so: its effective configuration shows the
values that really run, with `inject.sabotage` beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

from intaglio.config import EngineConfig, Scalar, parse_overrides
from intaglio.errors import ConfigError

PATH = "inject.sabotage"


def in_force(config: EngineConfig) -> EngineConfig:
    """The configuration that the engine is really built with: `config` itself where nothing is sabotaged.

    Raises ConfigError naming `inject.sabotage` for text that is no list of pairs, and for a pair that would change
    the injection itself.
    """
    text = config.inject.sabotage
    if text is None:
        return config
    pairs = [pair.strip() for pair in text.split(";")]
    if any(pair.startswith("inject.") for pair in pairs):
        raise ConfigError(f"{PATH} cannot change what is injected: {text!r}", field=PATH)
    try:
        return parse_overrides(pairs, config)
    except ConfigError as error:
        raise ConfigError(f"{PATH} is {text!r}: {error}", field=PATH) from None


def render(values: Mapping[str, Scalar]) -> str:
    """The value of `inject.sabotage` that puts these values in force. Raises ConfigError for text with a semicolon."""
    for path, value in values.items():
        if isinstance(value, str) and ";" in value:
            raise ConfigError(f"{PATH} cannot hold {path}={value!r}: it has a semicolon", field=PATH)
    return ";".join(f"{path}={_text(value)}" for path, value in sorted(values.items()))


def _text(value: Scalar) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
