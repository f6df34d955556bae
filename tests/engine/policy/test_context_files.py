"""Contexts on disk: whole or refused, one tenant's or nobody's."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import replace

import pytest

from intaglio.errors import ContextDamagedError, ContextMismatchError, UnknownContextError
from intaglio.state.context_files import MANIFEST, ContextFiles, ContextRecord, payload

ID = "ctx-" + "0a" * 12
BLOCKS = (b"keys of block 0.", b"keys of block 1.")


def record(**changes):
    made = ContextRecord(
        id=ID,
        tenant="ada",
        name="manual",
        version=3,
        tokens=tuple(range(10)),
        block_tokens=4,
        block_bytes=(16,),
        checksums=(tuple(map(zlib.crc32, BLOCKS)),),
        identity={"model": "m" * 64, "dtype": "bf16"},
        created=1000.25,
        expires=2000.5,
    )
    return replace(made, **changes)


@pytest.fixture
def files(tmp_path):
    return ContextFiles(tmp_path / "contexts")


def write(files, made=None, blocks=BLOCKS):
    made = made or record()
    partial = files.begin(made.tenant, made.id)
    payload(partial, 0).write_bytes(b"".join(blocks))
    files.commit(made, partial)
    return made


def manifest(files):
    return files.place("ada", ID) / MANIFEST


def test_what_was_written_is_read_by_another_process_as_it_was(files):
    made = write(files)
    again = ContextFiles(files.folder)
    assert again.ids("ada") == [ID]
    assert again.read("ada", ID) == made
    assert again.read("ada", ID).sha256 == made.sha256
    again.verify(made)
    assert made.blocks == 2
    assert made.nbytes == 2 * 16 + 4 * 10


def test_only_the_owner_of_the_process_may_read_it(files):
    write(files)
    home = files.place("ada", ID)
    assert home.stat().st_mode & 0o077 == 0
    assert manifest(files).stat().st_mode & 0o077 == 0


def test_another_tenant_has_no_such_context(files):
    write(files)
    assert files.ids("bob") == []
    for tenant in ("bob", "", "ADA"):
        with pytest.raises(UnknownContextError, match=ID):
            files.read(tenant, ID)


def test_a_context_moved_to_another_tenant_or_id_is_refused(files):
    write(files)
    other = files.place("bob", ID)
    other.parent.mkdir()
    files.place("ada", ID).rename(other)
    with pytest.raises(ContextDamagedError, match="another context"):
        files.read("bob", ID)


def test_a_half_written_context_is_never_seen_and_goes_when_abandoned(files):
    partial = files.begin("ada", ID)
    payload(partial, 0).write_bytes(BLOCKS[0])
    assert files.ids("ada") == []
    with pytest.raises(UnknownContextError):
        files.read("ada", ID)
    second = "ctx-" + "0b" * 12
    files.discard(files.begin("ada", second))
    assert partial.is_dir()  # another process may be writing it
    os.utime(partial, (1, 1))
    files.discard(files.begin("ada", second))
    assert not partial.exists()


def test_a_deleted_context_is_gone_and_deleting_twice_is_no_error(files):
    write(files)
    files.delete("ada", ID)
    files.delete("ada", ID)
    assert files.ids("ada") == []
    assert list(files.place("ada", ID).parent.iterdir()) == []


def test_the_end_can_be_moved_and_nothing_else_changes(files):
    made = write(files)
    files.rewrite(replace(made, expires=9000.0))
    again = files.read("ada", ID)
    assert again == replace(made, expires=9000.0)
    assert again.sha256 == made.sha256


@pytest.mark.parametrize("at", [0, 1, 40, 200, -2])
def test_a_flipped_byte_of_the_manifest_is_seen(files, at):
    write(files)
    raw = bytearray(manifest(files).read_bytes())
    raw[at] ^= 1
    manifest(files).write_bytes(raw)
    with pytest.raises(ContextDamagedError):
        files.read("ada", ID)


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_truncated_manifest_is_seen(files, keep):
    write(files)
    manifest(files).write_bytes(manifest(files).read_bytes()[:keep])
    with pytest.raises(ContextDamagedError):
        files.read("ada", ID)


def test_a_manifest_of_another_version_is_named_as_such(files):
    write(files)
    body = json.loads(manifest(files).read_bytes())
    body["schema"] = "intaglio-context/2"
    manifest(files).write_text(json.dumps(body))
    with pytest.raises(ContextMismatchError, match="intaglio-context/2"):
        files.read("ada", ID)


@pytest.mark.parametrize("value", [None, [], "text", {"schema": 5}, {"schema": "other/1"}], ids=str)
def test_another_kind_of_file_is_no_context(files, value):
    write(files)
    manifest(files).write_text(json.dumps(value))
    with pytest.raises(ContextDamagedError):
        files.read("ada", ID)


@pytest.mark.parametrize(
    "text", ['"x":NaN', '"x":1e999', '"x":-Infinity', '"x":' + 900 * "[" + 900 * "]"], ids=range(4)
)
def test_a_manifest_with_numbers_that_are_none_is_damage(files, text):
    write(files)
    manifest(files).write_text('{"schema":"intaglio-context/1",' + text + "}", encoding="utf-8")
    with pytest.raises(ContextDamagedError):
        files.read("ada", ID)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": (1, -2, 3, 4, 5, 6, 7, 8)},
        {"tokens": (1, 2, 3)},
        {"block_tokens": 0},
        {"block_bytes": (16, 16)},
        {"checksums": ((1, 2, 3),)},
        {"expires": "later"},
        {"created": None},
    ],
    ids=str,
)
def test_a_sealed_manifest_that_contradicts_itself_is_refused(files, changes):
    files.discard(files.begin("ada", ID))
    made = record(**changes)
    home = files.place("ada", ID)
    home.mkdir()
    files.rewrite(made)
    with pytest.raises(ContextDamagedError):
        files.read("ada", ID)


def test_a_lost_manifest_is_damage_and_not_another_tenants_context(files):
    write(files)
    manifest(files).unlink()
    with pytest.raises(ContextDamagedError, match="no manifest"):
        files.read("ada", ID)


@pytest.mark.parametrize("harm", ["flipped", "truncated", "longer", "swapped", "gone"])
def test_a_damaged_payload_is_refused(files, harm):
    made = write(files)
    path = payload(files.place("ada", ID), 0)
    raw = bytearray(path.read_bytes())
    if harm == "flipped":
        raw[20] ^= 16
    elif harm == "truncated":
        del raw[-1]
    elif harm == "longer":
        raw += b"!"
    elif harm == "swapped":
        raw = raw[16:] + raw[:16]
    path.write_bytes(raw)
    if harm == "gone":
        path.unlink()
    with pytest.raises(ContextDamagedError):
        files.verify(made)
