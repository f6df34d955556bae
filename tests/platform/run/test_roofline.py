"""The machine's roofs: measured, kept, taken into plans, and refused on another machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from counterproof.errors import InputError, SetupError
from counterproof.plan import checks
from counterproof.record import canonical
from counterproof.record.store import Store, StudyPaths, open_store
from counterproof.run import roofline
from intaglio.config import from_flat


def test_measuring_keeps_rates_that_a_plan_then_carries(
    new_study: Callable[..., StudyPaths], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert canonical.read_json(new_study(name="before").plan)["roofline"] is None
    told: list[str] = []
    found = roofline.measure(open_store(), from_flat({"threads.count": 1}), told.append)
    rates = found["rates"]
    assert rates["threads"] == 1
    measured = {name: rates[name] for name in rates if name.endswith(("_bytes_s", "_us", "_ms"))}
    assert len(measured) == 5
    assert all(value > 0 for value in (*measured.values(), *rates["flops_s"].values()))
    assert told == ["memory and matrix products", "loopback", "disk"]
    plan = canonical.read_json(new_study(name="after").plan)
    assert plan["roofline"]["rates"] == rates
    slower = {**rates, "memory_bytes_s": 1.0, "disk_sync_ms": 1e9, "flops_s": {"fp32": 1.0, "bf16": 1e18}}
    monkeypatch.setattr(roofline, "engine_rates", lambda _engine: slower)
    again = roofline.measure(open_store(), from_flat({"threads.count": 1}), told.append)["rates"]
    assert again["memory_bytes_s"] == rates["memory_bytes_s"]
    assert again["flops_s"] == {"fp32": rates["flops_s"]["fp32"], "bf16": 1e18}
    assert again["disk_sync_ms"] <= rates["disk_sync_ms"]
    monkeypatch.setattr(roofline, "machine_sha256", lambda: "another")
    assert roofline.known(open_store()) is None


def test_a_damaged_file_counts_as_not_measured(store: Store) -> None:
    opened = open_store()
    opened.create()
    for text in ("{", "[]", '{"schema": "other"}'):
        (opened.root / roofline.FILE).write_text(text, encoding="utf-8")
        assert roofline.known(opened) is None


def test_an_engine_that_cannot_measure_is_a_set_up_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SetupError, match="could not measure its roofs"):
        roofline.engine_rates(from_flat({"device": "cuda", "threads.count": 1}))


@pytest.mark.parametrize(("attacks", "exploratory", "refused"), [("", False, True), ("magic", True, True)])
def test_a_plan_must_say_what_its_change_attacks(
    new_study: Callable[..., StudyPaths], attacks: str, exploratory: bool, refused: bool
) -> None:
    from counterproof.plan.prereg import compose_arms

    new_study(name="s")
    config: Any = compose_arms("short", ()).baseline.config
    changed = _with_attacks(config, attacks)
    with pytest.raises(InputError) as caught:
        checks.check(changed, exploratory=exploratory)
    assert any("factor.attacks" in text for text in (str(caught.value), *caught.value.details)) is refused


def _with_attacks(config: Any, attacks: str) -> Any:
    import dataclasses

    return dataclasses.replace(config, factor=dataclasses.replace(config.factor, attacks=attacks))
