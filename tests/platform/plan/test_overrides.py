"""Raw override tokens: exactly typed values of known keys, once each, or a refusal that names the fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterproof.errors import EXIT_INPUT, InputError, RefusedError
from counterproof.plan import locate, overrides, schema
from counterproof.plan.compose import compose


@pytest.fixture
def folder() -> Path:
    return locate.experiments_folder()


@pytest.mark.parametrize(
    ("token", "value"),
    [
        ("engine.kv_cache.block_tokens=32", 32),
        ("engine.kv_cache.blocks=null", None),
        ("engine.kv_cache.blocks=7", 7),
        ("engine.kv_cache.enabled=true", True),
        ("engine.model=some/folder", "some/folder"),
        ("engine.model='with = and space'", "with = and space"),
        ("workload.top_p=1", 1),
        ("workload.top_p=0.5", 0.5),
        ("study.seed=-3", -3),
        ("engine=tiny", "tiny"),
    ],
)
def test_typed_tokens_are_accepted(folder: Path, token: str, value: object) -> None:
    (checked,) = overrides.check([token], folder)
    assert checked.value == value
    assert type(checked.value) is type(value)
    composed = compose("kv_cache", [token], folder)
    if not checked.group:
        found = composed.resolved[checked.key]
        assert found == value


@pytest.mark.parametrize(
    ("token", "fault"),
    [
        ("engine.kv_cache.block_tokens=16.0", "must be int, not float 16.0"),
        ('engine.kv_cache.block_tokens="16"', "must be int, not str '16'"),
        ("engine.kv_cache.block_tokens=true", "must be int, not bool True"),
        ("engine.kv_cache.block_tokens=null", "must be int, not NoneType"),
        ("engine.kv_cache.block_tokens=", "must be int, not str ''"),
        ("engine.kv_cache.enabled=1", "must be bool, not int 1"),
        ("engine.model=7", "must be str, not int 7"),
        ("study.aa_band=nan", "finite"),
        ("study.aa_band=inf", "finite"),
        ("+engine.extra=1", "'+', '++' and '~' are refused"),
        ("++engine.model=x", "'+', '++' and '~' are refused"),
        ("~engine.model", "'+', '++' and '~' are refused"),
        ("engine.typo=1", "unknown configuration key"),
        ("block_tokens=1", "did you mean engine.kv_cache.block_tokens"),
        ("engine.kv_cache=1", "unknown configuration key"),
        ("hydra.run.dir=x", "unknown configuration key"),
        ("engine=absent", "has no option 'absent'"),
        ("engine@workload=tiny", "packages"),
        ("engine.kv_cache.block_tokens=1,2", "sweeps"),
        ("workload.requests=[1]", "lists and mappings"),
        ("workload.requests={a:1}", "lists and mappings"),
        ("engine.model=${now:%S}", "resolvers are refused"),
        ("engine.model=${oc.env:HOME}", "resolvers are refused"),
        ("factor.path=engine.dtype", "makes the experiment what it is"),
        ("guardrails=[]", "makes the experiment what it is"),
        ("name=other", "makes the experiment what it is"),
        ("engine.kv_cache.enabled", "not of the form path=value"),
    ],
)
def test_anything_else_is_refused_with_exit_code_2(folder: Path, token: str, fault: str) -> None:
    with pytest.raises(RefusedError) as caught:
        overrides.check([token], folder)
    assert fault in str(caught.value)
    assert caught.value.exit_code == EXIT_INPUT


def test_a_repeated_key_is_refused_although_hydra_would_keep_the_last(folder: Path) -> None:
    with pytest.raises(RefusedError, match="given twice"):
        overrides.check(["engine.dtype=fp32", "engine.dtype=bf16"], folder)


def test_every_fault_is_listed(folder: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        overrides.check(["+a=1", "engine.typo=1", "engine.kv_cache.block_tokens=16.0"], folder)
    assert len(caught.value.details) == 3


@pytest.mark.parametrize(
    "value", [True, False, None, 3, -2, 0.1, 1e-9, "plain", "a b", "it's", "1", "null", "é"]
)
def test_rendered_tokens_say_the_same_value(folder: Path, value: object) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_override(overrides.render("a.b", value))
    assert parsed.value() == value
    assert type(parsed.value()) is type(value)


def test_only_known_leaves_can_be_overridden() -> None:
    types = schema.leaf_types()
    assert types["engine.kv_cache.blocks"] == (int, type(None))
    assert types["engine.kv_cache.enabled"] == (bool,)
    assert not any(path.split(".")[0] in schema.FIXED for path in types)


def test_an_unknown_experiment_lists_what_there_is(folder: Path) -> None:
    with pytest.raises(InputError) as caught:
        compose("absent", [], folder)
    assert "kv_cache" in caught.value.details[0]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("question: ${now:%Y}", "resolvers are refused"),
        ("question: {_target_: os.system}", ""),
        ("unknown_key: 1", "unknown_key"),
        ("study: {blocks: many}", "many"),
        ("engine: {dtype: fp64}", "engine.dtype must be one of"),
        ("study: {seed: '${workload.requests}', blocks: '${nowhere.to.be.found}'}", "nowhere"),
    ],
)
def test_a_bad_experiment_file_is_an_input_error(tmp_path: Path, line: str, fault: str) -> None:
    head = "defaults: [counterproof_schema, _self_]\nname: bad\n"
    if not line.startswith("question"):
        head += "question: why\n"
    tail = (
        "\ncalibration: true\nworkload: {builder: pydoc_questions}\n"
        "primary: {metric: tpot_ms, statistic: p50, sesoi: 0.1}\n"
    )
    (tmp_path / "bad.yaml").write_text(head + line + tail, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        compose("bad", [], tmp_path)
    assert fault in " ".join([str(caught.value), *caught.value.details])


def test_the_composed_tree_is_read_only_and_typed(folder: Path) -> None:
    from dataclasses import FrozenInstanceError

    composed = compose("kv_cache", ["engine.kv_cache.enabled=false"], folder)
    assert composed.config.engine.kv_cache.enabled is False
    with pytest.raises(FrozenInstanceError):
        composed.config.engine.dtype = "fp32"  # type: ignore[misc]
