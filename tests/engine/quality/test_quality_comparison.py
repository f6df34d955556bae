"""Two configurations read the same tokens: the scorer's logits are the engine's own, and losses show."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from intaglio.cli import main
from intaglio.config import EngineConfig, parse_overrides
from intaglio.engine import Engine
from intaglio.errors import ConfigError
from intaglio.intake.request import SamplingParams
from intaglio.quality.comparison import compare
from intaglio.quality.scorer import Scorer

Capture = pytest.CaptureFixture[str]
SEQUENCES = [[0, *b"The import statement combines two operations"], [0, *b"A class"]]


def configure(model: Path, *overrides: str) -> EngineConfig:
    return parse_overrides([f"model={model}", "threads.count=1", *overrides])


@pytest.fixture(scope="module")
def sequences() -> list[list[int]]:
    return [[token % 512 for token in sequence] for sequence in SEQUENCES]


@pytest.mark.parametrize(
    "overrides", [(), ("dtype=fp32",), ("kv_cache.enabled=false",), ("numerics.mode=fast",)]
)
def test_teacher_forcing_gives_the_engine_s_own_logits(tiny_model: Path, overrides: tuple[str, ...]) -> None:
    config = configure(tiny_model, *overrides)
    with Engine(config) as engine:
        (output,) = engine.generate(
            ["Modules are"], SamplingParams(max_tokens=20, ignore_eos=True), return_logits=True
        )
        mode = engine.effective_config()["numerics.mode"]
    whole = [*output.prompt_token_ids, *output.token_ids][:-1]
    with Scorer(config, longest=len(whole), chunk=7) as scorer:
        rows = np.concatenate(list(scorer.score(whole)))[len(output.prompt_token_ids) - 1 :]
        assert scorer.effective_config()["numerics.mode"] == mode
    own = np.stack([np.ravel(row) for row in output.logits or []])
    assert rows.shape == own.shape == (20, 512)
    if mode == "invariant":
        assert rows.tobytes() == own.tobytes()
    else:
        assert np.abs(rows - own).max() < 0.5


def test_chunks_and_earlier_sequences_leave_no_trace(
    library: object, tiny_model: Path, sequences: list[list[int]]
) -> None:
    config = configure(tiny_model)
    with Scorer(config, longest=60, chunk=60) as whole, Scorer(config, longest=60, chunk=3) as parts:
        (expected,) = whole.score(sequences[0])
        for _ in range(2):
            list(parts.score(sequences[1]))
            found = list(parts.score(sequences[0]))
            assert [len(part) for part in found] == [3] * 15
            assert np.concatenate(found).tobytes() == expected.tobytes()
        with pytest.raises(ConfigError, match="61 tokens"):
            list(whole.score([1] * 61))


def test_the_same_configuration_differs_in_nothing(tiny_model: Path, sequences: list[list[int]]) -> None:
    told: list[tuple[int, int]] = []
    config = configure(tiny_model)
    found = compare(config, config, sequences, chunk=16, tell=lambda *counts: told.append(counts))
    positions = [len(sequence) - 1 for sequence in sequences]
    assert [each.positions for each in found.each] == positions
    assert found.total.positions == sum(positions)
    assert (found.total.kl_mean, found.total.max_dlogit, found.total.perplexity_ratio) == (0.0, 0.0, 1.0)
    assert found.total.first_divergence is None
    assert told[-1] == (sum(positions), sum(positions))
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_coarser_weights_stray_farther(library: object, tiny_model: Path, sequences: list[list[int]]) -> None:
    reference = configure(tiny_model, "dtype=fp32")
    losses = {
        name: compare(
            reference, configure(tiny_model, "dtype=fp32", f"weights.format={name}"), sequences
        ).total
        for name in ("auto", "q8_0", "q4_1")
    }
    assert losses["auto"].kl_mean == 0.0
    assert 0 < losses["q8_0"].kl_mean < losses["q4_1"].kl_mean < 1
    assert 0 < losses["q8_0"].max_dlogit < losses["q4_1"].max_dlogit
    assert losses["q4_1"].top1_agreement > 0.5
    assert losses["q4_1"].kl_p99 > losses["q4_1"].kl_mean


def test_predictions_inside_a_prompt_can_be_left_out(tiny_model: Path, sequences: list[list[int]]) -> None:
    reference, candidate = configure(tiny_model, "dtype=fp32"), configure(tiny_model)
    everything = compare(reference, candidate, sequences[:1], chunk=8)
    end = compare(reference, candidate, sequences[:1], chunk=8, skip=[30])
    assert (everything.total.positions, end.total.positions) == (44, 14)
    assert end.total.kl_mean != everything.total.kl_mean
    for skip in ([44], [-1]):
        with pytest.raises(ConfigError, match="nothing to predict"):
            compare(reference, candidate, sequences[:1], skip=skip)
    with pytest.raises(ConfigError, match="one skip for each"):
        compare(reference, candidate, sequences, skip=[1])
    with pytest.raises(ConfigError, match="at least one sequence"):
        compare(reference, candidate, [])


def test_models_of_other_vocabularies_are_refused(
    tiny_model: Path, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoint("llama"), tmp_path / "other")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / name, folder)
    with pytest.raises(ConfigError, match="one vocabulary") as caught:
        compare(configure(tiny_model), configure(folder), [[1, 2, 3]])
    assert caught.value.field == "model"


def command(model: Path, *arguments: str) -> list[str]:
    return ["quality", "--model", str(model), "--quiet", *arguments, "threads.count=1"]


def test_the_command_reports_both_sides(library: object, tiny_model: Path, capsys: Capture) -> None:
    options = ["--candidate", "weights.format=q8_0", "--tokens", "200", "--window", "64"]
    assert main(command(tiny_model, *options, "--json")) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["positions"] == 200  # each window's first token follows the one that begins every text
    assert facts["sequences"] == 4
    assert facts["reference"]["dtype"] == "fp32"
    assert facts["candidate"]["weights.format"] == "q8_0"
    assert facts["candidate"]["model.weight_bytes"] < facts["reference"]["model.weight_bytes"] / 3
    assert 0 < facts["kl_mean"] < 0.1
    assert facts["reference_perplexity"] > 1
    assert main(command(tiny_model, *options)) == 0
    out = capsys.readouterr().out
    assert f"{facts['kl_mean']:.3e} nats" in out
    assert f"{100 * facts['top1_agreement']:.2f} %" in out


def test_a_text_of_one_s_own(tiny_model: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "text").write_text("The statement is simple. " * 3, encoding="utf-8")
    same = ["--candidate", "numerics.mode=fast", "--reference", "numerics.mode=fast", "--json"]
    assert main(command(tiny_model, *same, "--text", str(tmp_path / "text"), "--tokens", "5000")) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["top1_agreement"] == 1.0
    assert "fewer than 5000" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--candidate", "weights.format=q9"], "weights.format"),
        (["--candidate", "nonsense"], "path=value"),
        (["--candidate", "dtype=bf16", "--tokens", "1"], "--tokens"),
        (["--candidate", "dtype=bf16", "--window", "4000"], "1 to 512"),
        (["--candidate", "dtype=bf16", "--text", "absent.txt"], "absent.txt"),
    ],
)
def test_bad_input_is_one_line(tiny_model: Path, capsys: Capture, options: list[str], words: str) -> None:
    assert main(command(tiny_model, *options, "--quiet")) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("intaglio: error: ")
    assert words in err.splitlines()[-1]


def test_a_side_without_a_cache_is_read_in_the_same_pieces(
    tiny_model: Path, sequences: list[list[int]]
) -> None:
    config = configure(tiny_model, "dtype=fp32", "numerics.mode=fast")
    without = configure(tiny_model, "dtype=fp32", "numerics.mode=fast", "kv_cache.enabled=false")
    longest = max(map(len, sequences))
    with Scorer(config, longest=longest, chunk=7) as one, Scorer(without, longest=longest, chunk=7) as other:
        for sequence in sequences:
            pieces = list(zip(one.score(sequence), other.score(sequence), strict=True))
            assert len(pieces) == -(-len(sequence) // 7)
            for cached, plain in pieces:
                np.testing.assert_allclose(cached, plain, atol=1e-4)
