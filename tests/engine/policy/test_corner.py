"""A planted corner delays exactly the steps that lie in it, and changes no output."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from intaglio import config_corner
from intaglio.config import from_flat
from intaglio.config_history import complete
from intaglio.errors import ConfigError
from intaglio.intake.request import SamplingParams

FIVE = SamplingParams(max_tokens=5, ignore_eos=True)


def build(fake: ModuleType, corner: str | None) -> Any:
    return fake.make_engine(from_flat({"inject.corner": corner, "kv_cache.blocks": 64}))


def delayed_steps(fake: ModuleType, corner: str | None, prompts: list[list[int]]) -> tuple[int, list[Any]]:
    """How many steps were delayed, and the outputs."""
    engine = build(fake, corner)
    outputs = engine.generate(prompts, FIVE)
    steps = {s.step for s in engine.trace.drain() if s.phase == "injected"}
    assert bool(steps) == (engine.counters()["injected_ns"] > 0)
    return len(steps), [o.token_ids for o in outputs]


@pytest.mark.parametrize(
    ("corner", "prompts", "wanted"),
    [
        ("min_running=2;delay_us=200", [[97, 98]], 0),
        ("min_running=2;delay_us=200", [[97, 98], [99]], 5),
        ("prompt_tokens=3;delay_us=200", [[97, 98], [97]], 0),
        ("prompt_tokens=3;delay_us=200", [[97, 98, 99], [97]], 5),
        ("prompt_tokens=3; min_running=2; delay_us=200", [[97, 98, 99]], 0),
        (None, [[97, 98, 99], [97]], 0),
    ],
)
def test_only_steps_of_the_corner_are_delayed(
    fake: ModuleType, corner: str | None, prompts: list[list[int]], wanted: int
) -> None:
    steps, outputs = delayed_steps(fake, corner, prompts)
    assert steps == wanted
    assert outputs == delayed_steps(fake, None, prompts)[1]


def test_the_engine_says_what_is_planted_and_old_records_had_none(fake: ModuleType) -> None:
    text = "min_running=2;delay_us=200"
    assert build(fake, text).effective_config()["inject.corner"] == text
    assert complete({})["inject.corner"] is None
    assert config_corner.parse(text) == config_corner.Corner(200, min_running=2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "delay_us=3",
        "min_running=2",
        "min_running=0;delay_us=3",
        "min_running=2;delay_us=3;delay_us=4",
        "min_running=2;delay_us=99999999",
        "running=2;delay_us=3",
        "min_running=2;delay_us=3;",
    ],
)
def test_a_bad_corner_names_the_path(text: str) -> None:
    with pytest.raises(ConfigError, match=r"inject\.corner") as caught:
        from_flat({"inject.corner": text})
    assert caught.value.field == "inject.corner"
