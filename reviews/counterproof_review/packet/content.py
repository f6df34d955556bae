"""What a member's content may be: strict JSON, strict JSON lines, or a table. Never anything that runs.

Pickles are refused by name and by their first bytes, so that renaming one does not help; nothing is ever
unpickled to find out. Text pickles (protocol 0) are not JSON and fall to the same code through a scan of
their opcodes, which runs none of them.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import Any

from counterproof_review.packet import canonical, layout
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive

PICKLE_SUFFIXES = (
    ".pkl",
    ".pickle",
    ".pt",
    ".pth",
    ".bin",
    ".joblib",
    ".npy",
    ".npz",
    ".ckpt",
    ".dill",
    ".h5",
    ".keras",
    ".mar",
)
_EXECUTABLE_SUFFIXES = (".py", ".pyc", ".so", ".dll", ".sh", ".exe", ".whl", ".egg", ".pth")
_HEAD_BYTES = 64
_SCAN_BYTES = 1 << 16
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive, as torch writes pickles into"),
    (b"\x93NUMPY", "a NumPy array file, which may hold objects"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip stream"),
    (b"\x78\x9c", "a zlib stream, as joblib writes pickles into"),
    (b"\x28\xb5\x2f\xfd", "a zstd stream"),
    (b"BZh", "a bzip2 stream"),
    (b"\xfd7zXZ", "an xz stream"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"#!", "a script"),
)


def check_suffix(path: str) -> None:
    """Refuse names that say pickle or program (E_PICKLE)."""
    if path.lower().endswith(PICKLE_SUFFIXES + _EXECUTABLE_SUFFIXES):
        raise PacketError("E_PICKLE", "a file of this kind can run code when it is read", path=path)


def check_head(head: bytes, path: str) -> None:
    """Refuse content whose first bytes are those of a pickle, an archive or a program (E_PICKLE)."""
    if len(head) >= 2 and head[0] == 0x80 and head[1] <= 5:
        raise PacketError("E_PICKLE", f"is a pickle of protocol {head[1]}", path=path)
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            raise PacketError("E_PICKLE", f"is {kind}", path=path)


def looks_like_text_pickle(head: bytes) -> bool:
    """Whether `head` reads as pickle opcodes up to STOP. Only scanned: no opcode is executed."""
    if head[:1] not in (b"c", b"(", b"]", b"}", b")", b"I", b"S", b"V", b"L", b"F", b"N"):
        return False
    try:
        last = ""
        for opcode, _, _ in pickletools.genops(head):
            last = opcode.name
    except (ValueError, IndexError, OverflowError, UnicodeError):
        return False
    return last == "STOP"


def read_object(archive: Archive, path: str) -> dict[str, Any]:
    """A member that is one canonical JSON object."""
    data = archive.read(path, layout.MAX_JSON_BYTES)
    check_head(data[:_HEAD_BYTES], path)
    try:
        return canonical.decode_object(data, path)
    except PacketError as error:
        raise _named(error, data, path) from None


def lines(archive: Archive, path: str) -> Iterator[dict[str, Any]]:
    """The objects of a member of canonical JSON lines, streamed. Every line ends in one newline."""
    rest = b""
    count = 0
    for chunk in archive.stream(path):
        if not count and not rest:
            check_head(chunk[:_HEAD_BYTES], path)
            if looks_like_text_pickle(chunk[:_SCAN_BYTES]):
                raise PacketError("E_PICKLE", "is a pickle in text form", path=path)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            count += 1
            if count > layout.MAX_LINES:
                raise PacketError("E_LIMIT", f"more than {layout.MAX_LINES} lines", path=path)
            yield _line(line + b"\n", path)
        if len(rest) > layout.MAX_JSON_BYTES:
            raise PacketError("E_LIMIT", f"a line exceeds {layout.MAX_JSON_BYTES} bytes", path=path)
    if rest:
        raise _named(PacketError("E_JSON", "the last line does not end", path=path), rest, path)


def _line(line: bytes, path: str) -> dict[str, Any]:
    try:
        return canonical.decode_object(line, path)
    except PacketError as error:
        raise _named(error, line, path) from None


def _named(error: PacketError, data: bytes, path: str) -> PacketError:
    if error.code == "E_JSON" and looks_like_text_pickle(data[:_SCAN_BYTES]):
        return PacketError("E_PICKLE", "is a pickle in text form", path=path)
    return error
