"""Why a prompt missed: each kind of cause by an example, the text around it, and the same from the command line."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from intaglio.cli import main
from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.intake.explain_miss import Asked, explain
from intaglio.intake.request import SamplingParams
from intaglio.intake.tokenizer import Tokenizer
from intaglio.state.block_key import CacheIdentity

IDENTITY = CacheIdentity("m", "r", "bf16", "auto", "bf16", "invariant", "tensor=1", 4)
STORY = "Once upon a time there was a little girl who had a red ball and a blue kite."


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return Tokenizer(tiny_model)


@pytest.fixture
def asked(tokenizer):
    def build(text, *, chat=False, system=None, tenant="", **changes):
        identity = dataclasses.replace(IDENTITY, **changes)
        if not chat:
            return Asked(tuple(tokenizer.encode(text)), identity, tokenizer, tenant, text)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": text})
        return Asked(tuple(tokenizer.apply_chat_template(messages)), identity, tokenizer, tenant, text)

    return build


def kinds(explanation):
    return [cause.kind for cause in explanation.causes]


def test_the_first_differing_token_and_the_text_around_it(asked, tokenizer):
    first, second = asked(STORY), asked(STORY.replace("red", "green"))
    told = explain(first, second)
    assert kinds(told) == ["text", "block size tail"]
    assert first.ids[: told.token] == second.ids[: told.token]
    assert told.ids == (first.ids[told.token], second.ids[told.token])
    assert told.before.endswith("who had a") or told.before.endswith("who had a ")
    assert told.first.lstrip().startswith("red ball")
    assert told.second.lstrip().startswith("green ball")
    assert (told.common_tokens, told.hit_tokens) == (told.token, told.token // 4 * 4)


def test_white_space_is_told_apart_from_text(asked):
    for other in (STORY.replace("time there", "time  there"), STORY.replace("time there", "time\nthere")):
        assert kinds(explain(asked(STORY), asked(other)))[0] == "white space"
    assert kinds(explain(asked(STORY), asked(STORY.replace("time there", "timer there"))))[0] == "text"


def test_other_code_points_of_the_same_characters(asked):
    first, second = asked("Ask for caf\u00e9 au lait"), asked("Ask for cafe\u0301 au lait")
    assert kinds(explain(first, second))[0] in ("unicode form", "text")
    assert explain(first, second).token is not None


def test_a_special_token_where_the_other_has_none(tokenizer, asked):
    ids = tokenizer.encode(STORY)
    special = next(i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i))
    other = Asked((*ids[:6], special, *ids[6:]), IDENTITY, tokenizer)
    told = explain(dataclasses.replace(asked(STORY), text=None), other)
    assert (kinds(told)[0], told.token, told.ids[1]) == ("special token", 6, special)


def test_the_template_is_named_when_the_users_text_is_the_same(asked):
    plain, chat = asked(STORY), asked(STORY, chat=True)
    assert kinds(explain(plain, chat))[0] == "template"
    assert kinds(explain(chat, asked(STORY, chat=True, system="Be brief.")))[0] == "template"
    assert explain(chat, chat).causes[0].kind == "last token"


def test_a_difference_before_both_users_texts_is_the_templates(asked):
    first = asked("Tell me of cats.", chat=True, system="Be kind.")
    second = asked("Tell me of dogs.", chat=True, system="Be rude.")
    assert kinds(explain(first, second))[0] == "template"
    same = asked("Tell me of dogs.", chat=True, system="Be kind.")
    assert kinds(explain(first, same))[0] == "text"


def test_the_same_text_in_other_tokens(tokenizer):
    ids = tokenizer.encode("hello hello", add_bos=False)
    single = [token for letter in "hello hello" for token in tokenizer.encode(letter, add_bos=False)]
    first, second = (Asked(tuple(x), IDENTITY, tokenizer) for x in (ids, single))
    if first.whole != second.whole or first.ids == second.ids:
        pytest.skip("this vocabulary cuts the text in one way alone")
    assert kinds(explain(first, second))[0] == "tokenisation"


def test_tenants_and_configurations_share_nothing(asked):
    told = explain(asked(STORY, tenant="a"), asked(STORY, tenant="b"))
    assert (kinds(told), told.hit_tokens) == (["tenant"], 0)
    told = explain(asked(STORY), asked(STORY, dtype="fp32", numerics="fast"))
    assert (kinds(told), told.hit_tokens) == (["model configuration"], 0)
    assert "dtype: bf16 and fp32" in told.causes[0].detail
    assert "numerics" in told.causes[0].detail


def test_a_cache_that_is_off_is_the_first_cause(asked):
    on, off = asked(STORY), dataclasses.replace(asked(STORY), caches=False)
    for first, second, words in (
        (off, on, "leaves no blocks"),
        (on, off, "looks none up"),
        (off, off, "leaves no blocks behind and the second looks none up"),
    ):
        told = explain(first, second)
        assert (kinds(told), told.hit_tokens) == (["prefix cache off"], 0)
        assert words in told.causes[0].detail


def test_the_command_knows_a_cache_that_was_switched_off(tiny_model, capsys):
    base = ["explain-miss", STORY, STORY + " And so on.", "--json", "--model", str(tiny_model)]
    for extra, hit in (
        ([], True),
        (["prefix_cache.enabled=true"], True),
        (["prefix_cache.enabled=false"], False),
        (["prefix_cache.enabled=true", "--second", "prefix_cache.enabled=false"], False),
    ):
        assert main([*base, *extra]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["hit_tokens"] > 0) is hit, extra
        assert (told["causes"][0]["kind"] == "prefix cache off") is not hit


def test_what_fills_no_block_is_named(asked):
    ids = asked(STORY).ids
    first = dataclasses.replace(asked(STORY), ids=ids[:10])
    told = explain(first, asked(STORY))
    assert (told.token, told.common_tokens, told.hit_tokens) == (None, 10, 8)
    assert kinds(told) == ["block size tail"]
    assert "last 2 tokens" in told.causes[0].detail
    whole = dataclasses.replace(first, ids=ids[:12])
    assert explain(whole, asked(STORY)).causes == ()


@pytest.mark.parametrize("change", ["none", "red", "tail"])
def test_the_engine_hits_exactly_what_is_explained(tiny_model, tokenizer, change):
    other = {"none": STORY, "red": STORY.replace("red", "green"), "tail": STORY + " It was a sunny day."}[
        change
    ]
    first, second = (Asked(tuple(tokenizer.encode(t)), IDENTITY, tokenizer, "", t) for t in (STORY, other))
    overrides = [f"model={tiny_model}", "prefix_cache.enabled=true", "kv_cache.block_tokens=4"]
    with Engine(parse_overrides([*overrides, "threads.count=1"])) as engine:
        engine.generate([STORY], SamplingParams(max_tokens=1))
        (output,) = engine.generate([other], SamplingParams(max_tokens=1))
    assert output.cached_tokens == explain(first, second).hit_tokens > 0


def test_the_command_tells_the_same(tiny_model, tmp_path, capsys, asked):
    other = STORY.replace("red", "green")
    (tmp_path / "b.txt").write_text(other)
    base = [
        "explain-miss",
        STORY,
        str(tmp_path / "b.txt"),
        "--model",
        str(tiny_model),
        "kv_cache.block_tokens=4",
    ]
    assert main([*base, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    wanted = explain(asked(STORY), asked(other)).to_dict()
    assert told == json.loads(json.dumps(wanted))
    assert main([*base, "--tenant-b", "bob", "--second", "dtype=fp32", "--chat-b"]) == 0
    out = capsys.readouterr().out
    assert "cause      tenant" in out
    assert "dtype: bf16 and fp32" in out
    (tmp_path / "ids.json").write_text("[1, 2, 3]")
    assert main(["explain-miss", str(tmp_path / "ids.json"), STORY, "--model", str(tiny_model)]) == 0
    assert "differ at" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--system-a", "x"], "chat template"),
        (["--second", "nonsense=1"], "unknown configuration path"),
        (["--model", "no-such-model-anywhere"], "no-such-model-anywhere"),
    ],
)
def test_what_cannot_be_used_is_refused(tiny_model, capsys, arguments, told):
    model = [] if "--model" in arguments else ["--model", str(tiny_model)]
    assert main(["explain-miss", "a", "b", *model, *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.txt", b"\xff\xfe\xff", "is not UTF-8"),
        ("a.json", b"{", "is no JSON"),
        ("b.json", b'["x"]', "must hold a list of token ids"),
        ("deep.json", b"[" * 100_000 + b"]" * 100_000, "is no JSON: maximum recursion depth exceeded"),
    ],
)
def test_damaged_files_are_refused(tiny_model, tmp_path, capsys, name, data, told):
    (tmp_path / name).write_bytes(data)
    for prompts in ([str(tmp_path / name), "b"], ["a", str(tmp_path / name)]):
        assert main(["explain-miss", *prompts, "--model", str(tiny_model)]) == 2
        err = capsys.readouterr().err
        assert "intaglio: error" in err and told in err and "Traceback" not in err


def test_a_models_own_files_nested_too_deep_are_refused(tiny_model, tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "config.json").write_bytes(b"[" * 100_000 + b"]" * 100_000)
    assert main(["explain-miss", "a", "b", "--model", str(model)]) == 2
    assert "config.json" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["fp32", "bf16"])
def test_what_auto_stands_for_is_no_difference(form, tiny_model, capsys):
    base = [
        "explain-miss",
        STORY,
        STORY,
        "--json",
        f"model={tiny_model}",
        f"dtype={form}",
        "kv_cache.block_tokens=4",
    ]
    assert main([*base, "--second", f"kv_cache.format={form}"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [cause["kind"] for cause in told["causes"]] == ["last token"] and told["hit_tokens"] > 0
    other = "bf16" if form == "fp32" else "int8"
    assert main([*base, "--second", f"kv_cache.format={other}"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["hit_tokens"] == 0 and "kv_format" in str(told["causes"])


def test_the_mode_that_auto_takes_here_is_no_difference(tiny_model, capsys):
    with Engine(parse_overrides([f"model={tiny_model}", "threads.count=1"])) as engine:
        mode = engine.effective_config()["numerics.mode"]
    other = {"fast": "invariant", "invariant": "fast"}[mode]
    base = ["explain-miss", STORY, STORY, "--json", f"model={tiny_model}", "kv_cache.block_tokens=4"]
    hits = []
    for second in (mode, other):
        assert main([*base, "--second", f"numerics.mode={second}"]) == 0
        hits.append(json.loads(capsys.readouterr().out)["hit_tokens"])
    assert hits[0] > 0 and hits[1] == 0


@pytest.mark.parametrize("wrong", [-1, 9_999_999])
def test_token_ids_that_the_model_does_not_have_are_named(wrong, tiny_model, tmp_path, capsys):
    (tmp_path / "ids.json").write_text(json.dumps([5, wrong, 7]))
    assert main(["explain-miss", str(tmp_path / "ids.json"), STORY, f"model={tiny_model}"]) == 2
    assert f"token {wrong}; ids go from 0 to 511" in capsys.readouterr().err
