"""A sabotaged engine runs without the feature that its configuration asks for, and says so."""

from __future__ import annotations

import pytest

from intaglio import config_sabotage
from intaglio.config import EngineConfig, from_flat
from intaglio.engine import Engine
from intaglio.errors import ConfigError


def test_what_is_injected_overrules_the_configuration_and_nothing_else_moves() -> None:
    config = from_flat({"inject.sabotage": "kv_cache.enabled=false", "scheduler.max_running": 3})
    real = config_sabotage.in_force(config)
    assert (config.kv_cache.enabled, real.kv_cache.enabled) == (True, False)
    assert real == from_flat({"kv_cache.enabled": False}, config)
    assert config_sabotage.in_force(EngineConfig()) == EngineConfig()


def test_a_text_is_rendered_as_it_is_read() -> None:
    values = {"scheduler.prefill_chunk": None, "kv_cache.enabled": False, "scheduler.max_running": 1}
    text = config_sabotage.render(values)
    assert text == "kv_cache.enabled=false;scheduler.max_running=1;scheduler.prefill_chunk=null"
    base = from_flat({"scheduler.prefill_chunk": 64, "inject.sabotage": text})
    real = config_sabotage.in_force(base)
    assert (real.scheduler.prefill_chunk, real.scheduler.max_running, real.kv_cache.enabled) == (
        None,
        1,
        False,
    )
    with pytest.raises(ConfigError, match="semicolon"):
        config_sabotage.render({"model": "a;b"})


@pytest.mark.parametrize(
    "text", ["kv_cache.enabled", "no.such=1", "kv_cache.enabled=7", "inject.step_delay_us=0", "", "a=1;;b=2"]
)
def test_a_bad_text_names_the_path(text: str) -> None:
    with pytest.raises(ConfigError, match=r"inject\.sabotage") as caught:
        config_sabotage.in_force(from_flat({"inject.sabotage": text}))
    assert caught.value.field == "inject.sabotage"


def test_the_engine_computes_as_if_the_feature_were_off_and_shows_it() -> None:
    base = {"model": "tiny", "threads.count": 1}
    computed, effective = {}, {}
    for name, extra in (
        ("on", {}),
        ("off", {"kv_cache.enabled": False}),
        ("sabotaged", {"inject.sabotage": "kv_cache.enabled=false"}),
    ):
        with Engine(from_flat({**base, **extra})) as engine:
            engine.generate([[5, 6, 7, 8]])
            computed[name] = engine.counters()["tokens_computed"]
            effective[name] = engine.effective_config()
    assert computed["on"] < computed["off"] == computed["sabotaged"]
    assert {**effective["off"], "inject.sabotage": "kv_cache.enabled=false"} == effective["sabotaged"]
