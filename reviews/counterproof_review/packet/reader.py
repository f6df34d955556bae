"""The strict reader of a packet's zip. Everything about the container is checked before a byte is given out.

Python's own zip reader repairs what it meets: it rewrites `../../x`, lets the last of two equal names win and
skips what stands before the first member. Here each of these is refused with its own code. Memory stays
bounded: the directory is small by its limits, content is streamed.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from counterproof_review.packet import archive
from counterproof_review.packet.archive import CENTRAL, END, LOCAL, Member
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.layout import (
    CHUNK_BYTES,
    MAX_FILES,
    MAX_MEMBER_BYTES,
    MAX_NAME_BYTES,
    MAX_PACKET_BYTES,
    MAX_RATIO,
    check_name,
)

_UNIX = 3
_ENCRYPTED = 0x1 | 0x40
_DATA_DESCRIPTOR = 0x8


class Archive:
    """An opened packet. `members` maps paths to Members, in the order they lie in.

    Raises PacketError for anything that is not exactly the packet's form. The file stays open, so that what
    was checked is what is read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, io.SEEK_END)
        if self._size > MAX_PACKET_BYTES:
            raise PacketError("E_LIMIT", f"{self._size} bytes; a packet has at most {MAX_PACKET_BYTES}")
        self._directory_offset = 0
        self.members: dict[str, Member] = {}
        self._read_directory()
        self._check_members()

    @classmethod
    def open(cls, path: Path) -> Archive:
        """Open the packet at `path`; a file that is missing or no regular file is E_ZIP."""
        try:
            file = path.open("rb")
        except OSError as error:
            raise PacketError(
                "E_ZIP", f"cannot be opened: {error.strerror}; give the packet's file"
            ) from None
        try:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise PacketError("E_ZIP", "is not a regular file")
            return cls(file)
        except BaseException:
            file.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, path: str, limit: int) -> bytes:
        """The content of a member of at most `limit` bytes; E_LIMIT above, E_MISSING when absent."""
        member = self._member(path)
        if member.size > limit:
            raise PacketError("E_LIMIT", f"{member.size} bytes; at most {limit} are read", path=path)
        return b"".join(self.stream(path))

    def stream(self, path: str) -> Iterator[bytes]:
        """The content in chunks; raises E_CRC at the end if it does not match its checksum."""
        member = self._member(path)
        left = member.size
        crc = 0
        offset = member.data_offset
        while left:
            chunk = self._at(offset, min(left, CHUNK_BYTES), path)
            crc = zlib.crc32(chunk, crc)
            offset += len(chunk)
            left -= len(chunk)
            yield chunk
        if crc != member.crc:
            raise PacketError("E_CRC", "the content does not match its CRC-32", path=path)

    def sha256(self, path: str) -> str:
        """The digest of a member's content, streamed."""
        digest = hashlib.sha256()
        for chunk in self.stream(path):
            digest.update(chunk)
        return digest.hexdigest()

    def file(self, path: str) -> MemberFile:
        """A seekable read-only file over one member, for readers that need random access."""
        return MemberFile(self._file, self._member(path))

    def _member(self, path: str) -> Member:
        try:
            return self.members[path]
        except KeyError:
            raise PacketError("E_MISSING", "is not in the packet", path=path) from None

    def _at(self, offset: int, count: int, path: str = "") -> bytes:
        self._file.seek(offset)
        data = self._file.read(count)
        if len(data) != count:
            raise PacketError("E_TRUNCATED", f"ends after {offset + len(data)} bytes", path=path)
        return data

    def _read_directory(self) -> None:
        if self._size < END.size:
            raise PacketError("E_ZIP", "is too short to be a packet")
        mark, *disks, here, total, size, offset, comment = END.unpack(
            self._at(self._size - END.size, END.size)
        )
        if mark != archive.END_MARK:
            self._explain_missing_end()
        if comment:
            raise PacketError("E_COMMENT", "the zip has a comment")
        if any(disks) or here != total:
            raise PacketError("E_ZIP", "the zip claims to have several parts")
        if total > MAX_FILES:
            raise PacketError("E_LIMIT", f"{total} files; at most {MAX_FILES}")
        if size > total * (CENTRAL.size + 2 * 0xFFFF) or offset + size + END.size != self._size:
            raise PacketError("E_LAYOUT", "the directory does not end where the end record begins")
        if size > MAX_FILES * (CENTRAL.size + 8 * MAX_NAME_BYTES):
            raise PacketError("E_LIMIT", "the directory is too large")
        self._directory_offset = offset
        self._parse_directory(self._at(offset, size), total)

    def _explain_missing_end(self) -> None:
        head = self._at(0, min(4, self._size))
        window = min(self._size, 1 << 16)
        place = self._at(self._size - window, window).rfind(archive.END_MARK)
        if place < 0:
            code = "E_TRUNCATED" if head == archive.LOCAL_MARK else "E_ZIP"
            raise PacketError(code, "has no end record: not a packet, or an interrupted copy")
        record = self._at(self._size - window + place, min(END.size, window - place))
        if len(record) < END.size:
            raise PacketError("E_TRUNCATED", "the end record is cut off")
        if END.unpack(record)[-1]:
            raise PacketError("E_COMMENT", "the zip has a comment")
        raise PacketError("E_LAYOUT", "bytes follow the end of the zip")

    def _parse_directory(self, data: bytes, total: int) -> None:
        position = 0
        seen: dict[str, str] = {}
        for _ in range(total):
            member, position = _entry(data, position)
            _check_unique(member.path, seen)
            self.members[member.path] = member
        for name in self.members:
            check_name(name)
        if position != len(data):
            raise PacketError("E_LAYOUT", "the directory holds more than its entries")
        _check_folders(self.members)

    def _check_members(self) -> None:
        """Every local header is the fixed one for its entry, and nothing lies between the members."""
        expected = 0
        previous = b""
        for path, member in self.members.items():
            if archive.order_key(path) < previous:
                raise PacketError("E_ORDER", "the members are not in the packet's order", path=path)
            previous = archive.order_key(path)
            if member.offset != expected:
                raise PacketError("E_LAYOUT", "bytes before or between the members", path=path)
            if member.end > self._directory_offset:
                raise PacketError("E_TRUNCATED", "is longer than the room before the directory", path=path)
            header = self._at(member.offset, LOCAL.size + len(path), path)
            if header != archive.local_header(member):
                raise PacketError("E_HEADER", "its local header differs from the directory", path=path)
            expected = member.end
        if expected != self._directory_offset:
            raise PacketError("E_LAYOUT", "bytes between the members and the directory")


class MemberFile(io.RawIOBase):
    """Read-only random access to one stored member."""

    def __init__(self, file: BinaryIO, member: Member) -> None:
        super().__init__()
        self._file = file
        self._member = member
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._member.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = min(len(buffer), max(0, self._member.size - self._position))
        self._file.seek(self._member.data_offset + self._position)
        data = self._file.read(count)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def _entry(data: bytes, position: int) -> tuple[Member, int]:
    fixed = data[position : position + CENTRAL.size]
    if len(fixed) < CENTRAL.size or fixed[:4] != archive.CENTRAL_MARK:
        raise PacketError("E_HEADER", "a directory entry is broken")
    fields = CENTRAL.unpack(fixed)
    name_size, extra_size, comment_size = fields[10:13]
    end = position + CENTRAL.size + name_size
    raw = data[position + CENTRAL.size : end]
    if len(raw) != name_size:
        raise PacketError("E_HEADER", "a directory entry is cut off")
    name = _decode_name(raw)
    _check_kind(name, fields)
    if extra_size:
        raise PacketError("E_EXTRA_FIELD", "has an extra field", path=ascii(name))
    if comment_size:
        raise PacketError("E_COMMENT", "has a comment", path=ascii(name))
    member = Member(name, size=fields[9], crc=fields[7], offset=fields[16])
    if name.isascii() and data[position:end] != archive.central_header(member):
        # Names are judged before this difference would hide what is wrong with them.
        check_name(name)
        raise PacketError("E_HEADER", "a field of its directory entry is not the fixed one", path=name)
    return member, end


def _decode_name(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "strict")
    except UnicodeDecodeError:
        raise PacketError("E_PATH", "the name is not UTF-8", path=ascii(raw)) from None


def _check_kind(name: str, fields: tuple[int, ...]) -> None:
    """Refuse, most telling code first, an entry that is not a plain stored file."""
    made, flags, method = fields[1], fields[3], fields[4]
    stored, size = fields[8], fields[9]
    mode = fields[15] >> 16
    shown = ascii(name)[:160]
    if flags & _ENCRYPTED:
        raise PacketError("E_ENCRYPTED", "is encrypted", path=shown)
    if made >> 8 == _UNIX and stat.S_ISLNK(mode):
        raise PacketError("E_SYMLINK", "is a symbolic link", path=shown)
    if name.endswith("/") or (made >> 8 == _UNIX and stat.S_ISDIR(mode)) or fields[15] & 0x10:
        raise PacketError("E_DIRECTORY", "is a folder entry", path=shown)
    if size > MAX_MEMBER_BYTES:
        raise PacketError("E_BOMB", f"declares {size} bytes; at most {MAX_MEMBER_BYTES}", path=shown)
    if method != archive.STORED:
        if size > MAX_RATIO * max(stored, 1):
            raise PacketError("E_BOMB", f"expands {size // max(stored, 1)} times", path=shown)
        raise PacketError("E_COMPRESSED", "is compressed; members are stored", path=shown)
    if stored != size:
        raise PacketError("E_BOMB", f"declares {size} bytes but stores {stored}", path=shown)
    if flags & _DATA_DESCRIPTOR:
        raise PacketError("E_HEADER", "leaves its sizes to a data descriptor", path=shown)


def _check_unique(name: str, seen: dict[str, str]) -> None:
    """No two names that some file system would take for one: same case-folded compatibility form."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    if folded in seen:
        other = seen[folded]
        kind = "stands twice in the packet" if other == name else f"collides with {other!a}"
        raise PacketError("E_DUPLICATE", kind, path=ascii(name)[:160])
    seen[folded] = name


def _check_folders(members: dict[str, Member]) -> None:
    for path in members:
        parts = path.split("/")
        for count in range(1, len(parts)):
            if "/".join(parts[:count]) in members:
                raise PacketError("E_DUPLICATE", "a file stands where this one needs a folder", path=path)
