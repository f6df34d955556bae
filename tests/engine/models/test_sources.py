"""data/sources.yaml: complete, and true of the data that is there."""

from __future__ import annotations

import hashlib
import re

import pytest

from intaglio.errors import ModelError
from intaglio.models import catalogue
from intaglio.models.sources import data_root, find_source, read_sources

HEX40, HEX64 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")


def test_every_entry_is_complete():
    sources = read_sources()
    assert len(sources) > 20
    for source in sources.values():
        assert source.licence and source.made and source.size > 0
        assert HEX64.fullmatch(source.sha256), source.name
        assert source.origins
        for origin in source.origins:
            if origin.repository:
                assert HEX40.fullmatch(origin.commit), source.name
                assert re.fullmatch(r"[\w.-]+/[\w.-]+", origin.repository)
        if source.kind == "model":
            assert source.member and HEX64.fullmatch(source.member_sha256) and source.member_size > 0


def test_every_fetchable_model_has_a_source():
    for name in catalogue.FETCHED:
        assert find_source(name).kind == "model"


def test_no_host_names():
    assert "://" not in (data_root() / "sources.yaml").read_text()


def test_data_that_is_present_is_the_data_listed(shared_data):
    listed = {s.name: s for s in read_sources().values() if s.kind == "data"}
    checked = 0
    for name, source in listed.items():
        path = shared_data / name
        if not path.is_file():
            continue
        data = path.read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (source.sha256, source.size), name
        checked += 1
    assert checked > 20


@pytest.mark.parametrize(
    "text",
    [
        "schema: other/1\nsources: []\n",
        "not: [valid",
        "schema: counterproof-sources/1\nsources:\n  - {name: x}\n",
        "schema: counterproof-sources/1\nsources:\n  - {name: x, kind: data, licence: MIT, made: copy, "
        "sha256: '00', size: 1, origins: [{repository: a/b, commit: c, path: d}]}\n",
        "schema: counterproof-sources/1\nsources:\n  - {name: x, kind: data, licence: MIT, made: copy, sha256: "
        + "0" * 64
        + ", size: 1, origins: [{repository: a/b, commit: c}]}\n",
    ],
)
def test_incomplete_lists_are_refused(tmp_path, text):
    path = tmp_path / "sources.yaml"
    path.write_text(text)
    with pytest.raises(ModelError):
        read_sources(path)


def test_an_unknown_source_is_refused():
    with pytest.raises(ModelError, match="known: smollm2-135m"):
        find_source("nothing")
