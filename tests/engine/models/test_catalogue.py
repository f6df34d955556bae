"""Resolving models, and what identifies them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from intaglio.errors import ModelError
from intaglio.models import catalogue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The smallest folder that counts as a model."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"vocab_size": 4}')
    (path / "tokenizer.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def test_the_shipped_model_resolves_by_name(tiny_model):
    assert catalogue.resolve("tiny") == tiny_model


def test_a_folder_resolves_to_itself(folder, monkeypatch):
    assert catalogue.resolve(folder) == folder.resolve()
    monkeypatch.chdir(folder.parent)
    assert catalogue.resolve("./model") == folder.resolve()
    assert catalogue.resolve("model") == folder.resolve()


def test_a_catalogue_name_wins_over_a_folder_of_that_name(folder, tiny_model, monkeypatch):
    folder.rename(folder.parent / "tiny")
    monkeypatch.chdir(folder.parent)
    assert catalogue.resolve("tiny") == tiny_model
    assert catalogue.resolve("./tiny") == folder.parent.resolve() / "tiny"


@pytest.mark.parametrize(
    "name", ["", "  ", "nothing", "../nothing", "/nothing/at/all", "a\0b", "a/../b", "a/b/c"]
)
def test_what_is_nowhere_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError) as caught:
        catalogue.resolve(name)
    assert caught.value.field == "model"


def test_a_hub_id_is_not_downloaded_when_the_network_is_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="network use is off"):
        catalogue.resolve("owner/model-that-is-not-cached", download=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="network use is off"):
        catalogue.resolve("owner/model-that-is-not-cached")


def test_a_file_is_refused(folder):
    with pytest.raises(ModelError, match="is a file"):
        catalogue.resolve(folder / "config.json")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_names_what_is_missing(folder, name):
    (folder / name).unlink()
    with pytest.raises(ModelError, match=name):
        catalogue.resolve(folder)


def test_a_model_that_is_not_fetched_says_how_to_fetch_it(tmp_path, monkeypatch):
    monkeypatch.setenv("INTAGLIO_MODELS", str(tmp_path))
    with pytest.raises(ModelError, match="counterproof models fetch smollm2-135m"):
        catalogue.resolve("smollm2-135m")


def test_where_fetched_models_lie(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTAGLIO_MODELS", raising=False)
    monkeypatch.delenv("COUNTERPROOF_STORE", raising=False)
    assert catalogue.models_folder() == tmp_path.resolve() / "store" / "models"
    monkeypatch.setenv("COUNTERPROOF_STORE", str(tmp_path / "s"))
    assert catalogue.models_folder() == tmp_path.resolve() / "s" / "models"
    monkeypatch.setenv("INTAGLIO_MODELS", str(tmp_path / "m"))
    assert catalogue.models_folder() == tmp_path.resolve() / "m"


def _shard(folder: Path, names: list[str]) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_sharded_weights(folder):
    names = [
        "model-00002-of-00002.safetensors",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    _shard(folder, names)
    for name in set(names):
        (folder / name).write_bytes(name.encode())
    assert [p.name for p in catalogue.weight_files(catalogue.resolve(folder))] == sorted(set(names))
    before = catalogue.fingerprint(folder)
    (folder / names[0]).write_bytes(b"other weights")
    after = catalogue.fingerprint(folder)
    assert {key for key in before if before[key] != after[key]} == {"weights", "model"}
    (folder / names[0]).unlink()
    with pytest.raises(ModelError, match=names[0]):
        catalogue.resolve(folder)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "sub/x.safetensors", "model.bin"])
def test_an_index_cannot_name_a_path_elsewhere(folder, name):
    _shard(folder, [name])
    with pytest.raises(ModelError, match="no file beside it"):
        catalogue.weight_files(folder)


@pytest.mark.parametrize("text", ["not json", "[]", "{}", '{"weight_map": {}}'])
def test_a_damaged_index_is_refused(folder, text):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError):
        catalogue.resolve(folder)


def test_fingerprint_is_sha256_of_the_files(folder):
    found = catalogue.fingerprint(folder)
    assert found["weights"] == hashlib.sha256(b"weights").hexdigest()
    assert found["config"] == hashlib.sha256(b'{"vocab_size": 4}').hexdigest()
    assert found["tokenizer"] == hashlib.sha256(b"{}").hexdigest()
    assert found["template"] == hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize(
    "name, content, moves",
    [
        ("model.safetensors", b"weightz", {"weights"}),
        ("config.json", b'{"vocab_size": 5}', {"config"}),
        ("generation_config.json", b"{}", {"config"}),
        ("tokenizer.json", b"{ }", {"tokenizer"}),
        ("tokenizer_config.json", b'{"chat_template": "x"}', {"tokenizer", "template"}),
        ("chat_template.jinja", b"y", {"template"}),
    ],
)
def test_each_file_moves_its_part_and_the_whole(folder, name, content, moves):
    before = catalogue.fingerprint(folder)
    (folder / name).write_bytes(content)
    after = catalogue.fingerprint(folder)
    assert {key for key in before if before[key] != after[key]} == moves | {"model"}


def test_a_change_of_the_same_size_is_seen_and_an_unchanged_file_is_read_once(folder, monkeypatch):
    weights = folder / "model.safetensors"
    first = catalogue.sha256_file(weights)
    opened = []
    real = hashlib.file_digest
    monkeypatch.setattr(catalogue.hashlib, "file_digest", lambda *a: opened.append(a) or real(*a))
    assert catalogue.sha256_file(weights) == first
    assert opened == []
    stat = weights.stat()
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert catalogue.sha256_file(weights) == hashlib.sha256(b"WEIGHTS").hexdigest() != first


def test_a_named_template_list_uses_the_default(folder):
    templates = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert catalogue.chat_template_text(folder) == "b"


def test_the_list_shows_every_model_once(tmp_path, monkeypatch):
    monkeypatch.setenv("INTAGLIO_MODELS", str(tmp_path))
    rows = catalogue.list_models()
    assert [(row.name, row.origin, row.present) for row in rows] == [
        ("tiny", "shipped", True),
        ("smollm2-135m", "fetched", False),
    ]


def test_catalogue_and_tokenizer_load_neither_torch_nor_transformers(tiny_model):
    code = (
        "import sys; from pathlib import Path; from intaglio.models import catalogue, commands, fetch, sources\n"
        "from intaglio.intake.tokenizer import Tokenizer\n"
        "folder = catalogue.resolve('tiny'); Tokenizer(folder).encode('x'); catalogue.fingerprint(folder)\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
