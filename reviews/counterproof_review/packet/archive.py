"""The packet's zip: its one allowed form, byte for byte, and the writer.

Members are stored, not compressed; every time is 1980-01-01, every mode 0644, in the order of the SHA-256 of
their paths; no comments, no extra fields, no folder entries, nothing before, between or after. So order,
times, sizes and compression carry nothing about a member's role, and equal content is equal bytes.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.layout import (
    CHUNK_BYTES,
    MAX_FILES,
    MAX_MEMBER_BYTES,
    MAX_PACKET_BYTES,
    check_name,
)

LOCAL = struct.Struct("<4s5H3I2H")
CENTRAL = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4s4H2IH")
LOCAL_MARK = b"PK\x03\x04"
CENTRAL_MARK = b"PK\x01\x02"
END_MARK = b"PK\x05\x06"

VERSION_NEEDED = 20
VERSION_MADE = (3 << 8) | VERSION_NEEDED  # made on Unix, so that the mode below means something
FLAGS = 0
STORED = 0
DOS_TIME = 0
DOS_DATE = (0 << 9) | (1 << 5) | 1  # 1980-01-01
MODE = (stat.S_IFREG | 0o644) << 16


@dataclass(frozen=True)
class Member:
    """One file of a packet: its path, size in bytes, CRC-32 and the offset of its local header."""

    path: str
    size: int
    crc: int
    offset: int

    @property
    def data_offset(self) -> int:
        return self.offset + LOCAL.size + len(self.path)

    @property
    def end(self) -> int:
        return self.data_offset + self.size


def order_key(path: str) -> bytes:
    """Members stand in the order of this key, which says nothing about what they are."""
    return hashlib.sha256(path.encode("ascii")).digest()


def local_header(member: Member) -> bytes:
    """The only local header that `member` may have."""
    name = member.path.encode("ascii")
    fixed = LOCAL.pack(
        LOCAL_MARK,
        VERSION_NEEDED,
        FLAGS,
        STORED,
        DOS_TIME,
        DOS_DATE,
        member.crc,
        member.size,
        member.size,
        len(name),
        0,
    )
    return fixed + name


def central_header(member: Member) -> bytes:
    """The only directory entry that `member` may have."""
    name = member.path.encode("ascii")
    fixed = CENTRAL.pack(
        CENTRAL_MARK,
        VERSION_MADE,
        VERSION_NEEDED,
        FLAGS,
        STORED,
        DOS_TIME,
        DOS_DATE,
        member.crc,
        member.size,
        member.size,
        len(name),
        0,
        0,
        0,
        0,
        MODE,
        member.offset,
    )
    return fixed + name


def end_record(count: int, directory_size: int, directory_offset: int) -> bytes:
    """The only end record that a packet of `count` members may have."""
    return END.pack(END_MARK, 0, 0, count, count, directory_size, directory_offset, 0)


def write(target: Path, files: Mapping[str, bytes | Path]) -> str:
    """Write a packet atomically and return the SHA-256 of its bytes.

    `files` maps paths to content or to a file holding it. Raises PacketError for a path or a size that
    a reader would refuse, E_HASH if a file changes while it is read.
    """
    if len(files) > MAX_FILES:
        raise PacketError("E_LIMIT", f"{len(files)} files; at most {MAX_FILES}")
    part = target.with_name(target.name + ".part")
    digest = hashlib.sha256()
    try:
        with part.open("wb") as out:
            for chunk in _packet(files):
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return digest.hexdigest()


def _packet(files: Mapping[str, bytes | Path]) -> Iterator[bytes]:
    offset = 0
    members: list[Member] = []
    for path in sorted((check_name(p) for p in files), key=order_key):
        size, crc = _measure(path, files[path])
        member = Member(path, size, crc, offset)
        yield local_header(member)
        yield from _unchanged(member, files[path])
        members.append(member)
        offset = member.end
        if offset > MAX_PACKET_BYTES:
            raise PacketError("E_LIMIT", f"the packet exceeds {MAX_PACKET_BYTES} bytes", path=path)
    directory = b"".join(central_header(m) for m in members)
    yield directory
    yield end_record(len(members), len(directory), offset)


def _chunks(content: bytes | Path) -> Iterable[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _measure(path: str, content: bytes | Path) -> tuple[int, int]:
    size = crc = 0
    for chunk in _chunks(content):
        size += len(chunk)
        crc = zlib.crc32(chunk, crc)
    if size > MAX_MEMBER_BYTES:
        raise PacketError("E_LIMIT", f"{size} bytes; at most {MAX_MEMBER_BYTES}", path=path)
    return size, crc


def _unchanged(member: Member, content: bytes | Path) -> Iterator[bytes]:
    size = crc = 0
    for chunk in _chunks(content):
        size += len(chunk)
        crc = zlib.crc32(chunk, crc)
        yield chunk
    if (size, crc) != (member.size, member.crc):
        raise PacketError("E_HASH", "the file changed while it was packed", path=member.path)
