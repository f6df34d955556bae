"""A delay that strikes only in one corner of the loads: what a search for counterexamples has to find.

`inject.corner` holds `name=value` pairs with semicolons: `delay_us` and at least one condition, e.g.
`min_running=6;delay_us=3000`. A step is delayed when all conditions hold:

    min_running    at least so many requests have a part in the step
    prompt_tokens  one of them has a prompt of exactly so many tokens
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from intaglio.errors import ConfigError

PATH = "inject.corner"
MAX_DELAY_US = 60_000_000
_NAMES = ("min_running", "prompt_tokens", "delay_us")
_PAIR = re.compile(r"\s*([a-z_]+)\s*=\s*([1-9][0-9]{0,8})\s*")


@dataclass(frozen=True)
class Corner:
    """Where the delay strikes. A condition that is None always holds."""

    delay_us: int
    min_running: int | None = None
    prompt_tokens: int | None = None

    def delay_ns(self, prompts: Collection[int]) -> int:
        """The delay of a step whose requests have prompts of these lengths."""
        crowded = self.min_running is None or len(prompts) >= self.min_running
        there = self.prompt_tokens is None or self.prompt_tokens in prompts
        return 1000 * self.delay_us if crowded and there else 0


def parse(text: str | None) -> Corner | None:
    """The corner that a configuration injects, None for none. Raises ConfigError naming `inject.corner`."""
    if text is None:
        return None
    values: dict[str, int] = {}
    for pair in text.split(";"):
        found = _PAIR.fullmatch(pair)
        if found is None or found[1] not in _NAMES or found[1] in values:
            raise ConfigError(
                f"{PATH} must be pairs such as min_running=6;delay_us=3000 of {', '.join(_NAMES)}, each once and "
                f"a positive whole number, not {text!r}",
                field=PATH,
            )
        values[found[1]] = int(found[2])
    if "delay_us" not in values or len(values) < 2 or values["delay_us"] > MAX_DELAY_US:
        raise ConfigError(
            f"{PATH} needs delay_us (at most {MAX_DELAY_US}) and a condition, not {text!r}", field=PATH
        )
    return Corner(**values)
