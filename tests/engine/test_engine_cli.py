"""`intaglio generate`: the text alone on standard output, one clear line for what is wrong."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from intaglio.cli import main
from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.intake.request import SamplingParams

Capture = pytest.CaptureFixture[str]
PROMPT = "The import statement"


def command(tiny_model: Path, *arguments: str) -> list[str]:
    return ["generate", "--model", str(tiny_model), *arguments, "threads.count=1"]


@pytest.fixture(scope="module")
def expect(tiny_model: Path) -> Callable[..., str]:
    """The text that the Python API gives for a prompt."""

    def text(prompt: str, *overrides: str, **values: object) -> str:
        config = parse_overrides([f"model={tiny_model}", "threads.count=1", *overrides])
        with Engine(config) as engine:
            (output,) = engine.generate([prompt], SamplingParams(**values), on_error="raise")  # type: ignore[arg-type]
            return output.text

    return text


def test_the_text_alone_goes_to_standard_output(
    tiny_model: Path, expect: Callable[..., str], capsys: Capture
) -> None:
    code = main(command(tiny_model, "--prompt", PROMPT, "--max-tokens", "20", "--greedy", "--stats"))
    out, err = capsys.readouterr()
    assert code == 0
    assert out == expect(PROMPT, max_tokens=20)
    assert "output 20 tokens" in err
    assert all(word in err for word in ("TTFT", "TPOT", "finish length", "prompt "))
    if Path("/proc/self/status").exists():
        (peak,) = re.findall(r"peak memory (\d+) MiB", err)
        assert 50 < int(peak) < 100_000
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(("given", "running"), [([], 1), (["scheduler.max_running=3"], 3)])
def test_the_cache_has_room_for_the_one_request(tiny_model, monkeypatch, capsys, given, running):
    seen: list[dict[str, object]] = []

    class Watched(Engine):
        def close(self) -> None:
            seen.append(self.effective_config())
            super().close()

    monkeypatch.setattr("intaglio.cli.Engine", Watched)
    assert main(command(tiny_model, "--prompt", PROMPT, "--max-tokens", "2", *given)) == 0
    (facts,) = seen
    assert facts["scheduler.max_running"] == running
    longest = -(-facts["scheduler.max_model_len"] // facts["kv_cache.block_tokens"])
    assert facts["kv_cache.blocks"] == running * longest


@pytest.mark.parametrize(
    "arguments",
    [
        ["kv_cache.enabled=false", "--prompt", PROMPT, "--max-tokens", "12", "dtype=fp32"],
        ["--prompt", PROMPT, "dtype=fp32", "--max-tokens", "12", "kv_cache.enabled=false"],
        ["--prompt", PROMPT, "--max-tokens", "12", "dtype=fp32", "kv_cache.enabled=false"],
    ],
)
def test_overrides_may_stand_anywhere(
    tiny_model: Path, expect: Callable[..., str], capsys: Capture, arguments: list[str]
) -> None:
    assert main([*command(tiny_model), *arguments]) == 0
    wanted = expect(PROMPT, "kv_cache.enabled=false", "dtype=fp32", max_tokens=12)
    assert capsys.readouterr().out == wanted


def test_sampling_options_reach_the_sampler(
    tiny_model: Path, expect: Callable[..., str], capsys: Capture
) -> None:
    options = ["--temperature", "0.9", "--top-p", "0.95", "--top-k", "50", "--min-p", "0.01"]
    options += ["--repetition-penalty", "1.1", "--seed", "5", "--ignore-eos", "--max-tokens", "16"]
    assert main(command(tiny_model, "--prompt", PROMPT, *options)) == 0
    values = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1}
    wanted = expect(PROMPT, seed=5, ignore_eos=True, max_tokens=16, **values)
    assert capsys.readouterr().out == wanted
    assert wanted != expect(PROMPT, ignore_eos=True, max_tokens=16)


def test_stop_strings(tiny_model: Path, expect: Callable[..., str], capsys: Capture) -> None:
    whole = expect(PROMPT, max_tokens=20)
    stop = whole[9:13]
    assert main(command(tiny_model, "--prompt", PROMPT, "--max-tokens", "20", "--stop", stop)) == 0
    assert capsys.readouterr().out == whole[: whole.index(stop)]


def test_chat_puts_the_prompt_into_the_template(tiny_model: Path, capsys: Capture) -> None:
    arguments = ["--prompt", "What is it?", "--chat", "--system", "Be brief.", "--max-tokens", "12"]
    assert main(command(tiny_model, *arguments)) == 0
    with Engine(parse_overrides([f"model={tiny_model}", "threads.count=1"])) as engine:
        roles = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is it?"}]
        ids = engine.tokenizer.apply_chat_template(roles)
        (output,) = engine.generate([ids], SamplingParams(max_tokens=12))
    assert capsys.readouterr().out == output.text


def test_a_dash_reads_standard_input(
    tiny_model: Path, expect: Callable[..., str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{PROMPT}\n".encode())))
    assert main(command(tiny_model, "--prompt", "-", "--max-tokens", "9")) == 0
    assert capsys.readouterr().out == expect(PROMPT, max_tokens=9)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    assert main(command(tiny_model, "--prompt", "-")) == 2
    assert "not UTF-8 at byte 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "x", "--max-tokens", "0"], "max_tokens is 0"),
        (["--prompt", "x", "--max-tokens", "1000000"], "max_tokens is 1000000"),
        (["--prompt", "x", "--temperature", "nan"], "temperature is nan"),
        (["--prompt", "x", "--temperature", "-1"], "temperature is -1.0"),
        (["--prompt", "x", "--top-p", "0"], "top_p is 0.0"),
        (["--prompt", "x", "--stop", ""], "stop is ''"),
        (["--prompt", "x", "--greedy", "--temperature", "1"], "--greedy contradicts --temperature"),
        (["--prompt", "x\udc80"], "lone surrogate at character 1"),
        (["--prompt", "", "--chat"], "the prompt is empty"),
        (["--prompt", "x", "--system", "y"], "--system needs --chat"),
        (["--prompt", "x", "foo.bar=1"], "unknown configuration path 'foo.bar'"),
        (["--prompt", "x", "+dtype=fp32"], "not of the form path=value"),
        (["--prompt", "x", "scheduler.token_budget=16.0"], "must be a whole number"),
        (["--prompt", "x", "scheduler.token_budget=1_6"], "must be a whole number"),
        (["--prompt", "x", "scheduler.token_budget=٣٢"], "must be a whole number"),
        (["--prompt", "x", "model=other"], "model is given twice"),
        (["--prompt", "x", "disaggregation.enabled=true"], "not available in this version"),
        (["--prompt", "x", "kv_cache.blocks=1", "kv_cache.block_tokens=1"], "can never fit"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_exit_code_2(
    tiny_model: Path, capsys: Capture, arguments: list[str], says: str
) -> None:
    assert main(command(tiny_model, *arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("intaglio: error: ")
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["generate"], ["generate", "--prompt", "x", "stray"], ["generate", "--prompt", "x", "--nope"]],
)
def test_usage_errors(capsys: Capture, arguments: list[str]) -> None:
    if "stray" in arguments:
        assert main(arguments) == 2
    else:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    assert capsys.readouterr().out == ""


def test_help_has_examples(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["generate", "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert "kv_cache.enabled=false" in out


def test_a_missing_model_says_what_to_do(capsys: Capture, tmp_path: Path) -> None:
    assert main(["generate", "--model", str(tmp_path / "nowhere"), "--prompt", "x"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("intaglio: error: ")
    assert "catalogue" in err


def test_text_streams_while_it_is_made(tiny_model: Path) -> None:
    """The first piece can be read while the process still runs; a reader that leaves is no traceback."""
    arguments = command(tiny_model, "--prompt", PROMPT, "--max-tokens", "200", "--ignore-eos")
    slow = "inject.step_delay_us=200000"  # the whole would take 40 s; the first piece comes after one step
    process = subprocess.Popen(
        [sys.executable, "-m", "intaglio", *arguments, slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        assert process.poll() is None
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait(timeout=30)
        process.stderr.close()


def test_the_command_line_itself_needs_no_torch() -> None:
    code = "import sys, intaglio.cli; assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def shell(tiny_model: Path, redirect: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own with a redirection that only a shell can make."""
    words = [sys.executable, "-m", "intaglio", *command(tiny_model, *arguments)]
    script = f'exec "$@" {redirect}'
    return subprocess.run(["sh", "-c", script, "sh", *words], capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    "redirect, prompt, code, says",
    [
        (">&-", PROMPT, 4, "standard output is closed"),
        ("<&-", "-", 2, "standard input is closed"),
        pytest.param(
            ">/dev/full", PROMPT, 4, "cannot write the text: No space left",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full"),
        ),
    ],
)  # fmt: skip
def test_a_closed_or_full_stream_is_one_line_and_no_traceback(
    tiny_model: Path, redirect: str, prompt: str, code: int, says: str
) -> None:
    done = shell(tiny_model, redirect, "--prompt", prompt, "--max-tokens", "4")
    assert done.returncode == code
    assert done.stderr.startswith("intaglio: error: ")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("chat", [[], ["--chat"]])
def test_a_character_without_a_token_is_noted(
    tiny_model: Path, capsys: Capture, tmp_path: Path, chat: list[str]
) -> None:
    """A byte-level vocabulary of a restricted alphabet, like SmolLM2's, leaves such characters out."""
    shutil.copytree(tiny_model, tmp_path / "m")
    path = tmp_path / "m" / "tokenizer.json"
    document = json.loads(path.read_text())
    vocab = document["model"]["vocab"]
    vocab["unused"] = vocab.pop("\u0104")  # the byte 4
    path.write_text(json.dumps(document))
    for prompt in ("a\x04b", "ab"):
        assert main(command(tmp_path / "m", *chat, "--max-tokens", "3", "--prompt", prompt)) == 0
        notes = capsys.readouterr().err
        assert ("no token for '\\x04'" in notes) == ("\x04" in prompt)
        assert len(notes.splitlines()) == ("\x04" in prompt)
