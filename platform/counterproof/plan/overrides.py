"""Raw override tokens, checked before Hydra sees them.

Hydra would turn `16.0` into 16 for an integer and keep the last of two contradicting tokens; here each token
is `path=value` with a value of exactly the declared type, given once, or it is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from counterproof.errors import RefusedError
from counterproof.plan import locate, schema

_WORDS = ("null", "true", "false", "nan", "inf")
_RESOLVER = re.compile(r"\$\{\s*[A-Za-z_][\w.]*\s*:")


@dataclass(frozen=True)
class Token:
    """One checked override. `group`: the key is a config group and the value one of its options."""

    text: str
    key: str
    value: Any
    group: bool


def check(tokens: Iterable[str], folder: Path) -> list[Token]:
    """Parse and check all tokens against the schema and the config groups in `folder`.

    Raises RefusedError that lists every fault, not only the first.
    """
    types = schema.leaf_types()
    result: list[Token] = []
    faults: list[str] = []
    for text in tokens:
        try:
            token = _check_one(text, types, folder)
        except ValueError as error:
            faults.append(f"{text}: {error}")
            continue
        if any(token.key == other.key for other in result):
            faults.append(f"{text}: {token.key} is given twice; give it once")
        result.append(token)
    if faults:
        raise RefusedError(f"refused: {faults[0]}", details=faults if len(faults) > 1 else [])
    return result


def replace(base: Sequence[Token], other: Sequence[Token]) -> list[str]:
    """The texts of `base` with those of `other` in place of the ones that set the same key."""
    keys = {token.key for token in other}
    return [token.text for token in base if token.key not in keys] + [token.text for token in other]


def render(path: str, value: Any) -> str:
    """The token that sets `path` to a plain value."""
    if value is None:
        return f"{path}=null"
    if isinstance(value, bool):
        return f"{path}={'true' if value else 'false'}"
    if isinstance(value, (int, float)):
        return f"{path}={value!r}"
    plain = str(value)
    if re.fullmatch(r"[A-Za-z_][\w./-]*", plain) and plain.lower() not in _WORDS:
        return f"{path}={plain}"
    quoted = plain.replace("\\", "\\\\").replace("'", "\\'")
    return f"{path}='{quoted}'"


def has_resolver(value: Any) -> bool:
    """Whether a leaf calls a resolver, `${name:...}`; plain interpolation `${a.b}` is no call."""
    return isinstance(value, str) and _RESOLVER.search(value) is not None


def _check_one(text: str, types: dict[str, tuple[type, ...]], folder: Path) -> Token:
    override = _parse(text)
    key = override.key_or_group
    if override.package is not None:
        raise ValueError("packages (group@package) are not available")
    if override.is_sweep_override():
        raise ValueError("sweeps are not available: one study compares one candidate with one baseline")
    options = locate.group_options(folder, key)
    if options is not None:
        value = override.value()
        if value not in options:
            raise ValueError(f"{key} has no option {value!r}; there are: {', '.join(options)}")
        return Token(text, key, value, True)
    if key.split(".")[0] in schema.FIXED:
        raise ValueError(
            f"{key} makes the experiment what it is; write another experiment, or use --candidate"
        )
    if key not in types:
        raise ValueError(f"unknown configuration key '{key}'{_hint(key, types)}")
    value = _plain(override)
    if has_resolver(value):
        raise ValueError("resolvers are refused: their value is not the same every time")
    _check_type(key, value, types[key])
    return Token(text, key, value, False)


def _parse(text: str) -> Override:
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ValueError(f"not of the form path=value ({str(error).splitlines()[0]})") from None
    if override.type is not OverrideType.CHANGE:
        raise ValueError("'+', '++' and '~' are refused: they add or remove keys instead of changing a value")
    return override


def _plain(override: Override) -> Any:
    value = override.value()
    if not isinstance(value, (bool, int, float, str, type(None))):
        raise ValueError("lists and mappings cannot be overridden; give one plain value")
    return value


def _check_type(key: str, value: Any, allowed: tuple[type, ...]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} must be a finite number, not {value!r}")
    # A whole number is a fine real number; the other direction would hide that 16.0 is not 16.
    if type(value) in allowed or (type(value) is int and float in allowed):
        return
    if isinstance(value, str) and re.fullmatch(r"\$\{[\w.]+\}", value):
        return
    names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
    raise ValueError(f"{key} must be {names}, not {type(value).__name__} {value!r}")


def _hint(key: str, types: dict[str, tuple[type, ...]]) -> str:
    leaf = key.split(".")[-1]
    near = [path for path in types if path.split(".")[-1] == leaf or path.startswith(f"{key}.")]
    return f"; did you mean {', '.join(near[:6])}?" if near else ""
