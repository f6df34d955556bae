"""The packet's zip: one deterministic form, and every way to deviate from it refused before anything is read."""

from __future__ import annotations

import io
import os
import random
import stat
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from counterproof_review.packet import archive
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive

FILES: dict[str, bytes] = {
    "PACKET.json": b'{"schema":"replication-packet/1"}\n',
    "MANIFEST.jsonl": b"{}\n",
    "protocol/prereg.json": b'{"a":1}\n',
    "replay/arms/0a1b2c3d.json": b'{"x":true}\n',
    "replay/inputs/block-00.jsonl": b'{"r":[1,2]}\n' * 40,
}


@pytest.fixture
def packet(tmp_path: Path) -> Path:
    path = tmp_path / "p.rep.zip"
    archive.write(path, FILES)
    return path


def refusal(path: Path) -> str:
    """The code a file is refused with, on opening or on reading its content."""
    with pytest.raises(PacketError) as caught:
        read_all(path)
    return caught.value.code


def read_all(path: Path) -> None:
    with Archive.open(path) as opened:
        for name in opened.members:
            opened.sha256(name)


def make_zip(path: Path, fill: Callable[[zipfile.ZipFile], None]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as out:
        fill(out)
    return path


def entry(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.external_attr = mode << 16
    info.create_system = 3
    return info


def named(tmp_path: Path, *names: str) -> Path:
    """A zip by Python's writer with these names; backslashes survive because the name is set afterwards."""

    def fill(out: zipfile.ZipFile) -> None:
        for name in names:
            info = entry("placeholder")
            info.filename = name
            out.writestr(info, b"{}\n")

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Duplicate name")
        return make_zip(tmp_path / "named.zip", fill)


# -- the one form -----------------------------------------------------------------------------------------


def test_what_was_written_is_read_back_and_nothing_else(packet: Path) -> None:
    with Archive.open(packet) as opened:
        assert {name: opened.read(name, 1 << 20) for name in opened.members} == FILES
        assert list(opened.members) == sorted(FILES, key=archive.order_key)
        with pytest.raises(PacketError, match="E_MISSING"):
            opened.read("protocol/scope.json", 10)
        with pytest.raises(PacketError, match="E_LIMIT"):
            opened.read("replay/inputs/block-00.jsonl", 10)


def test_python_reads_the_same_members_with_fixed_times_and_modes(packet: Path) -> None:
    with zipfile.ZipFile(packet) as other:
        assert other.testzip() is None
        assert {i.filename: other.read(i) for i in other.infolist()} == FILES
        assert {i.date_time for i in other.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {i.external_attr >> 16 for i in other.infolist()} == {stat.S_IFREG | 0o644}
        assert {i.compress_type for i in other.infolist()} == {zipfile.ZIP_STORED}
        assert all(not i.extra and not i.comment for i in other.infolist())


def test_order_of_the_mapping_zone_umask_and_locale_do_not_change_a_byte(
    packet: Path, tmp_path: Path
) -> None:
    code = (
        "import os, sys; os.umask(int(sys.argv[3], 8));"
        "from pathlib import Path;"
        "from counterproof_review.packet import archive;"
        "files = eval(sys.argv[2]);"
        "names = sorted(files, reverse=sys.argv[4] == 'r');"
        "archive.write(Path(sys.argv[1]), {n: files[n] for n in names})"
    )
    for zone, umask, locale, order in (
        ("Asia/Kathmandu", "077", "C", "r"),
        ("America/St_Johns", "000", "C.UTF-8", "f"),
    ):
        target = tmp_path / f"{umask}.rep.zip"
        env = {**os.environ, "TZ": zone, "LC_ALL": locale, "PYTHONHASHSEED": umask}
        argv = [sys.executable, "-c", code, str(target), repr(FILES), umask, order]
        subprocess.run(argv, env=env, check=True, timeout=60)
        assert target.read_bytes() == packet.read_bytes()


def test_a_file_given_by_path_is_packed_like_its_bytes(packet: Path, tmp_path: Path) -> None:
    stored = tmp_path / "content"
    stored.write_bytes(FILES["PACKET.json"])
    other = tmp_path / "q.rep.zip"
    archive.write(other, {**FILES, "PACKET.json": stored})
    assert other.read_bytes() == packet.read_bytes()


def test_a_refused_name_leaves_no_half_written_packet(tmp_path: Path) -> None:
    with pytest.raises(PacketError, match="E_PATH"):
        archive.write(tmp_path / "p.rep.zip", {"../x": b""})
    assert list(tmp_path.iterdir()) == []


# -- names (field failure: traversal) ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "a/../../x",
        "/x",
        "//x",
        "a\\b",
        "..\\x",
        "C:x",
        "c:/x",
        "./a",
        "a//b",
        "a/./b",
        "a b",
        "A.json",
        "ä.json",
        "a\x00b",
        "a:b",
        "a/",
        "n" * 121,
    ],
)
def test_zip_traversal(tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.parent.iterdir())
    assert refusal(named(tmp_path, name)) in {"E_PATH", "E_DIRECTORY"}
    assert sorted(tmp_path.parent.iterdir()) == before


def test_a_name_that_is_not_utf8(packet: Path) -> None:
    data = packet.read_bytes().replace(b"protocol/prereg.json", b"protocol/prereg.js\xff\xfe")
    packet.write_bytes(data)
    assert refusal(packet) == "E_PATH"


def test_duplicate_entry(tmp_path: Path) -> None:
    assert refusal(named(tmp_path, "a.json", "a.json")) == "E_DUPLICATE"


@pytest.mark.parametrize(
    "pair",
    [
        ("a.json", "A.JSON"),
        ("straße.json", "STRASSE.json"),
        ("ﬁle.json", "file.json"),
        ("caf\u00e9.json", "cafe\u0301.json"),
    ],
)
def test_names_that_collide_by_case_or_unicode(tmp_path: Path, pair: tuple[str, str]) -> None:
    assert refusal(named(tmp_path, *pair)) == "E_DUPLICATE"


def test_a_file_where_another_needs_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "p.zip"
    archive.write(path, {"a": b"x", "a/b": b"y"})
    assert refusal(path) == "E_DUPLICATE"


# -- kinds of entries -------------------------------------------------------------------------------------


def test_symlink_entry(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "z", lambda z: z.writestr(entry("a", stat.S_IFLNK | 0o777), "/etc/passwd"))
    assert refusal(path) == "E_SYMLINK"


def test_directory_entry(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "z", lambda z: z.writestr(entry("a/", stat.S_IFDIR | 0o755), b""))
    assert refusal(path) == "E_DIRECTORY"
    path = make_zip(tmp_path / "y", lambda z: z.writestr(entry("a", stat.S_IFDIR | 0o755), b""))
    assert refusal(path) == "E_DIRECTORY"


def test_device_and_program_modes(tmp_path: Path) -> None:
    for mode in (stat.S_IFIFO | 0o644, stat.S_IFCHR | 0o644, stat.S_IFREG | 0o755, stat.S_IFREG | 0o4644):
        path = make_zip(tmp_path / "z", lambda z, m=mode: z.writestr(entry("a", m), b"x"))
        assert refusal(path) == "E_HEADER"


def test_encrypted_entry(packet: Path) -> None:
    data = bytearray(packet.read_bytes())
    place = data.rindex(b"PK\x01\x02")
    data[place + 8] |= 1
    packet.write_bytes(bytes(data))
    assert refusal(packet) == "E_ENCRYPTED"


def test_compressed_entry(tmp_path: Path) -> None:
    def fill(out: zipfile.ZipFile) -> None:
        info = entry("a.json")
        out.writestr(info, bytes(range(256)), zipfile.ZIP_DEFLATED)

    assert refusal(make_zip(tmp_path / "z", fill)) == "E_COMPRESSED"


def test_zip_bomb(tmp_path: Path) -> None:
    def fill(out: zipfile.ZipFile) -> None:
        out.writestr(entry("a.json"), bytes(50 << 20), zipfile.ZIP_DEFLATED)

    path = make_zip(tmp_path / "z", fill)
    assert path.stat().st_size < 1 << 20
    assert refusal(path) == "E_BOMB"


def test_a_declared_size_that_is_not_the_stored_one(packet: Path) -> None:
    data = bytearray(packet.read_bytes())
    place = data.index(b"PK\x01\x02")
    (size,) = struct.unpack_from("<I", data, place + 24)
    struct.pack_into("<I", data, place + 24, size + 1)
    packet.write_bytes(bytes(data))
    assert refusal(packet) == "E_BOMB"


def test_a_size_beyond_the_limit(packet: Path) -> None:
    data = bytearray(packet.read_bytes())
    place = data.index(b"PK\x01\x02")
    struct.pack_into("<II", data, place + 20, 0xFFFFFFF0, 0xFFFFFFF0)
    packet.write_bytes(bytes(data))
    assert refusal(packet) == "E_BOMB"


def test_more_files_than_allowed(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "z", lambda z: [z.writestr(entry(f"a{i}"), b"") for i in range(4097)] and None)
    assert refusal(path) == "E_LIMIT"


# -- bytes outside the members ----------------------------------------------------------------------------


def test_data_before_the_first_member(packet: Path) -> None:
    packet.write_bytes(b"#!/bin/sh\n" + packet.read_bytes())
    assert refusal(packet) == "E_LAYOUT"


def test_data_after_the_end(packet: Path) -> None:
    packet.write_bytes(packet.read_bytes() + b"x")
    assert refusal(packet) == "E_LAYOUT"


def test_data_between_members_and_directory(packet: Path) -> None:
    data = packet.read_bytes()
    directory = data.index(b"PK\x01\x02")
    end = bytearray(data[-22:])
    (offset,) = struct.unpack_from("<I", end, 16)
    struct.pack_into("<I", end, 16, offset + 5)
    packet.write_bytes(data[:directory] + b"extra" + data[directory:-22] + bytes(end))
    assert refusal(packet) == "E_LAYOUT"


def test_data_between_two_members(tmp_path: Path) -> None:
    members = [archive.Member("b", 1, 0x71BEEFF9, 0), archive.Member("a", 1, 0xE8B7BE43, 40)]
    members.sort(key=lambda m: archive.order_key(m.path))
    first = archive.Member(members[0].path, 1, members[0].crc, 0)
    second = archive.Member(members[1].path, 1, members[1].crc, first.end + 3)
    body = archive.local_header(first) + first.path.encode() + b"gap" + archive.local_header(second)
    body += second.path.encode()
    directory = archive.central_header(first) + archive.central_header(second)
    path = tmp_path / "z"
    path.write_bytes(body + directory + archive.end_record(2, len(directory), len(body)))
    assert refusal(path) == "E_LAYOUT"


def test_comment_of_the_zip_and_of_an_entry(packet: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(packet, "a") as out:
        out.comment = b"candidate is 0a1b2c3d"
    assert refusal(packet) == "E_COMMENT"

    def fill(out: zipfile.ZipFile) -> None:
        info = entry("a")
        info.comment = b"hello"
        out.writestr(info, b"x")

    assert refusal(make_zip(tmp_path / "z", fill)) == "E_COMMENT"


def test_extra_field(tmp_path: Path) -> None:
    def fill(out: zipfile.ZipFile) -> None:
        info = entry("a")
        info.extra = struct.pack("<HHI", 0x5455, 4, 1_700_000_000)
        out.writestr(info, b"x")

    assert refusal(make_zip(tmp_path / "z", fill)) == "E_EXTRA_FIELD"


def test_local_header_that_differs_from_the_directory(packet: Path) -> None:
    data = packet.read_bytes()
    name = next(iter(FILES)).encode()
    place = data.index(name)
    packet.write_bytes(data[:place] + name.swapcase() + data[place + len(name) :])
    assert refusal(packet) == "E_HEADER"


def test_members_in_another_order(tmp_path: Path) -> None:
    names = sorted(FILES, key=archive.order_key, reverse=True)
    body, directory, offset = b"", b"", 0
    for name in names:
        with io.BytesIO(FILES[name]) as content:
            data = content.read()
        member = archive.Member(name, len(data), zipfile.crc32(data), offset)  # type: ignore[attr-defined]
        body += archive.local_header(member) + data
        directory += archive.central_header(member)
        offset = member.end
    path = tmp_path / "z"
    path.write_bytes(body + directory + archive.end_record(len(names), len(directory), offset))
    assert refusal(path) == "E_ORDER"


def test_a_time_in_a_header(tmp_path: Path) -> None:
    def fill(out: zipfile.ZipFile) -> None:
        info = entry("a")
        info.date_time = (2026, 1, 2, 3, 4, 5)
        out.writestr(info, b"x")

    assert refusal(make_zip(tmp_path / "z", fill)) == "E_HEADER"


def test_interrupted_copy_at_every_length(packet: Path) -> None:
    data = packet.read_bytes()
    for length in range(len(data)):
        packet.write_bytes(data[:length])
        assert refusal(packet) in {"E_TRUNCATED", "E_ZIP", "E_LAYOUT", "E_COMMENT"}


def test_not_a_packet_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for content in (b"", b"PK", b"hello world, this is no zip at all" * 10, bytes(4096)):
        path.write_bytes(content)
        assert refusal(path) == "E_ZIP"
    assert refusal(tmp_path) == "E_ZIP"
    assert refusal(tmp_path / "absent") == "E_ZIP"


def test_flipped_content_fails_its_checksum(packet: Path) -> None:
    data = packet.read_bytes()
    packet.write_bytes(data.replace(b'{"a":1}', b'{"a":2}'))
    assert refusal(packet) == "E_CRC"


def test_every_single_byte_of_the_container_counts(packet: Path) -> None:
    """600 seeded changes of one byte anywhere; content changes are caught by the checksum at the latest."""
    data = packet.read_bytes()
    random_ = random.Random(7)
    places = {random_.randrange(len(data)) for _ in range(600)} | set(range(len(data) - 60, len(data)))
    for place in sorted(places):
        changed = bytearray(data)
        changed[place] ^= random_.randrange(1, 256)
        packet.write_bytes(bytes(changed))
        assert refusal(packet).startswith("E_"), place
