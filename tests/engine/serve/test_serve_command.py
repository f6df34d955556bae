"""`intaglio serve` as a process, the official client, and a real model: text, streams, tenants, graceful end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from intaglio.cli import main
from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.errors import ConfigError
from intaglio.intake.request import SamplingParams
from intaglio.serve.server import bind

DEADLINE_S = 120
FIRST, SECOND = "first-key-0001", "second-key-0002"
PROMPT = "The import statement finds a module and binds its name. " * 4


def overrides(tiny_model: Path) -> list[str]:
    return [f"model={tiny_model}", "threads.count=1", "dtype=fp32", "numerics.mode=invariant"]


@contextmanager
def served(tiny_model: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its base URL."""
    command = [sys.executable, "-m", "intaglio", "serve", "--port", "0", "--ready-json", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "INTAGLIO_API_KEY"}
    process = subprocess.Popen(
        [*command, *overrides(tiny_model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["ready"], ready["model"]) == (True, "tiny")
        yield process, f"http://127.0.0.1:{ready['port']}/v1"
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def site(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """One server with keys and a prefix cache for the module."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{FIRST} one admin\n{SECOND} two\n")
    folder = tmp_path_factory.mktemp("contexts")
    caches = ["prefix_cache.enabled=true", "context_cache.enabled=true", f"context_cache.folder={folder}"]
    with served(tiny_model, "--api-keys", str(keys), *caches) as (process, url):
        yield url, process


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Engine]:
    """The same model without a server."""
    with Engine(parse_overrides(overrides(tiny_model))) as made:
        yield made


def client(url: str, key: str = FIRST) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=DEADLINE_S)


def test_the_official_client_completes_and_streams(site: tuple[str, Any], engine: Engine) -> None:
    (alone,) = engine.generate([PROMPT], SamplingParams(max_tokens=24, logprobs=2), on_error="raise")
    with client(site[0]) as http:
        assert [model.id for model in http.models.list()] == ["tiny"]
        fields: Any = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
        answer = http.completions.create(**fields, logprobs=2)
        choice = answer.choices[0]
        assert (choice.text, choice.finish_reason) == (alone.text, alone.finish_reason)
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == pytest.approx(alone.logprobs)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(alone.prompt_token_ids)
        chunks = list(http.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
        assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == alone.text
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == len(alone.token_ids)


def test_the_official_client_chats_and_streams(site: tuple[str, Any], engine: Engine) -> None:
    messages: Any = [{"role": "user", "content": "What does import do?"}]
    ids = engine.tokenizer.apply_chat_template(messages)
    params = SamplingParams(max_tokens=24, temperature=0.7, seed=11, logprobs=2)
    (alone,) = engine.generate([ids], params, on_error="raise")
    with client(site[0]) as http:
        fields: Any = {"model": "tiny", "messages": messages, "max_completion_tokens": 24}
        fields |= {"temperature": 0.7, "seed": 11}
        answer = http.chat.completions.create(**fields, logprobs=True, top_logprobs=2)
        assert answer.choices[0].message.content == alone.text
        shown = answer.choices[0].logprobs
        assert shown is not None
        assert shown.content is not None
        assert [entry.logprob for entry in shown.content] == pytest.approx(alone.logprobs)
        assert all(len(entry.top_logprobs) == 2 for entry in shown.content)
        text, reasons, entries = "", [], 0
        for chunk in http.chat.completions.create(**fields, stream=True, logprobs=True, top_logprobs=2):
            text += chunk.choices[0].delta.content or ""
            reasons.append(chunk.choices[0].finish_reason)
            if chunk.choices[0].logprobs is not None:
                entries += len(chunk.choices[0].logprobs.content or [])
        assert text == alone.text
        assert reasons[-1] == alone.finish_reason
        assert entries == len(alone.token_ids)


def test_a_second_tenant_sees_no_hit_of_the_first(site: tuple[str, Any]) -> None:
    prompt = "Tenants share nothing, whatever their prompts have in common. " * 6
    hits, texts = [], []
    for key in (FIRST, FIRST, SECOND, SECOND):
        with client(site[0], key) as http:
            answer = http.completions.create(model="tiny", prompt=prompt, max_tokens=8, temperature=0)
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            hits.append(answer.usage.prompt_tokens_details.cached_tokens)
            texts.append(answer.choices[0].text)
    assert hits[0] == hits[2] == 0
    assert hits[1] == hits[3] > 0
    assert len(set(texts)) == 1


def test_a_context_is_computed_once_used_by_id_and_its_tenants_alone(site: tuple[str, Any]) -> None:
    document = "A module is a file of Python code; importing it runs the file once. " * 6
    question: Any = {"model": "tiny", "prompt": [40, 41, 42, 43], "max_tokens": 16, "temperature": 0}
    own = httpx.Client(base_url=site[0], headers={"authorization": f"Bearer {FIRST}"}, timeout=DEADLINE_S)
    other = httpx.Client(base_url=site[0], headers={"authorization": f"Bearer {SECOND}"}, timeout=DEADLINE_S)
    with own, other, client(site[0]) as http:
        cache = own.post("caches", json={"prompt": document, "ttl_s": 600, "name": "modules"}).json()
        assert [entry["id"] for entry in own.get("caches").json()["data"]] == [cache["id"]]
        used = {"context": cache["id"]}
        answers = [http.completions.create(**question, extra_body=used) for _ in range(2)]
        whole: Any = answers[0].usage
        assert whole.prompt_tokens == cache["tokens"] + 4
        assert cache["tokens"] >= whole.prompt_tokens_details.cached_tokens > cache["tokens"] - 16
        shown = own.post("completions", json={**question, **used, "return_token_ids": True}).json()
        inlined = shown["choices"][0]["prompt_token_ids"]
        assert len(inlined) == whole.prompt_tokens
        with client(site[0], SECOND) as second:
            alone = second.completions.create(**{**question, "prompt": inlined})
        assert [answer.choices[0].text for answer in answers] == [alone.choices[0].text] * 2
        for answer in (
            other.post("completions", json={**question, **used}),
            other.get(f"caches/{cache['id']}"),
            other.delete(f"caches/{cache['id']}"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_context")
        assert own.delete(f"caches/{cache['id']}").json()["deleted"] is True
        with pytest.raises(openai.NotFoundError):
            http.completions.create(**question, extra_body=used)


def test_the_official_client_sees_typed_errors(site: tuple[str, Any]) -> None:
    with client(site[0], "another-key") as http, pytest.raises(openai.AuthenticationError):
        http.models.list()
    with client(site[0]) as http:
        with pytest.raises(openai.NotFoundError) as missing:
            http.completions.create(model="other", prompt="a")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            http.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}], n=2)
        assert (bad.value.param, bad.value.code) == ("n", "unsupported_parameter")


def test_a_polite_end_finishes_a_stream_and_leaves_with_zero(tiny_model: Path, engine: Engine) -> None:
    (alone,) = engine.generate(["Once"], SamplingParams(max_tokens=150, ignore_eos=True), on_error="raise")
    with served(tiny_model) as (process, url), client(url) as http:
        fields: Any = {"model": "tiny", "prompt": "Once", "max_tokens": 150, "temperature": 0}
        stream = iter(http.completions.create(**fields, stream=True, extra_body={"ignore_eos": True}))
        text = next(stream).choices[0].text
        process.send_signal(signal.SIGTERM)
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert text == alone.text
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
        assert out == ""
        assert "Traceback" not in err
        assert "SIGTERM received" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--model", "no-such-model"], "no-such-model"),
        (["--api-key", "short"], "API key"),
        (["--api-key", ""], "API key"),
        (["--api-key", "", "--api-keys", "absent-file"], "--api-keys"),
        (["--api-keys", "absent-file"], "API keys"),
        (["--host", "256.0.0.1"], "--host"),
        (["--follow", "absent-file"], "absent-file"),
        (["--follow", "x", "--model", "tiny"], "--follow"),
        (["--max-queue", "-1"], "max_queue"),
        (["no.such=1"], "no.such"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert word in err
    assert "short" not in err.replace("too short", "")


def test_an_empty_key_in_the_environment_does_not_open_the_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTAGLIO_API_KEY", "")
    assert main(["serve", "--port", "0"]) == 2
    assert "API key" in capsys.readouterr().err


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_that_does_not_exist_is_refused_and_not_taken_modulo(port: int) -> None:
    with pytest.raises(ConfigError, match=f"port is {port}; give 1 to 65535") as refused:
        bind("127.0.0.1", port)
    assert refused.value.field == "port"
