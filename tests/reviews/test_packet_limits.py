"""Any byte counts, and memory stays bounded however large a packet is."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from counterproof_review.packet import archive, layout, manifest
from counterproof_review.packet.build import Built
from counterproof_review.packet.errors import PacketError

INPUT = "replay/inputs/block-00.jsonl"


# -- any byte ---------------------------------------------------------------------------------------------


def test_every_single_byte_change_is_detected(
    built: Built, tmp_path: Path, refused: Callable[[Path], PacketError]
) -> None:
    data = built.path.read_bytes()
    random_ = random.Random(20260101)
    path = tmp_path / "changed.rep.zip"
    for _ in range(400):
        place, bits = random_.randrange(len(data)), random_.randrange(1, 256)
        changed = bytearray(data)
        changed[place] ^= bits
        path.write_bytes(bytes(changed))
        assert refused(path).code, place


def test_every_single_byte_change_of_content_with_a_mended_checksum(
    members: Any, tmp_path: Path, refused: Callable[[Path], PacketError]
) -> None:
    """As a forger would who mends the zip's checksums but has no manifest of his own."""
    random_ = random.Random(5)
    names = sorted(members.files)
    original = dict(members.files)
    for _ in range(150):
        name = random_.choice(names)
        if not original[name]:
            continue
        content = bytearray(original[name])
        content[random_.randrange(len(content))] ^= random_.randrange(1, 256)
        members.files = {**original, name: bytes(content)}
        assert members.refusal(honest_manifest=False).code


# -- memory -----------------------------------------------------------------------------------------------


# A process's own peak in MiB. Not ru_maxrss: that begins at the peak of the process which started it.
_PEAK = """
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024
"""

_VERIFY_MEMORY = (
    _PEAK
    + """
import sys
from pathlib import Path
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.verify import Verification, verify
try:
    with Archive.open(Path(sys.argv[1])) as opened:
        verify(opened, Verification())
    code = "passed"
except PacketError as error:
    code = error.code
print(code, peak())
"""
)


def test_a_large_packet_is_verified_in_bounded_memory(built: Built, members: Any) -> None:
    """100 MiB of honest requests in one block: read line by line."""
    row = json.loads(members.files[INPUT].splitlines()[0])
    row["stop"] = ["x" * 14_000]
    target = members.folder / INPUT.replace("/", "_")
    count = 7_500
    line = members.dump({**row, "request_index": "INDEX"})
    with target.open("wb") as out:
        for index in range(count):
            out.write(line.replace(b'"INDEX"', str(index).encode()))
    assert target.stat().st_size > 100 << 20
    members.edit(layout.PACKET, lambda d: d.update(requests=[count, *d["requests"][1:]]))
    files: dict[str, Any] = {**members.files, INPUT: target}
    del files["MANIFEST.jsonl"]
    files["MANIFEST.jsonl"] = manifest.build(files)
    path = members.folder / "large.rep.zip"
    archive.write(path, files)
    done = subprocess.run(
        [sys.executable, "-c", _VERIFY_MEMORY, str(path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    code, peak = done.stdout.split()
    assert code == "E_ROWS", "the author's rows are for the original number of requests"
    assert int(peak) < 300


_HASH_MEMORY = (
    _PEAK
    + """
import sys
from pathlib import Path
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive
before = peak()
code = ""
try:
    with Archive.open(Path(sys.argv[1])) as opened:
        code = opened.sha256("big")
except PacketError as error:
    code = error.code
print(code, peak() - before)
"""
)


def test_huge_packet_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """A sparse member of 400 MiB is hashed with a few MiB; its checksum of zero is refused only at the end."""
    size = 400 << 20
    member = archive.Member("big", size, 0, 0)
    directory = archive.central_header(member)
    path = tmp_path / "z"
    with path.open("wb") as out:
        out.write(archive.local_header(member))
        out.seek(member.end)
        out.write(directory + archive.end_record(1, len(directory), member.end))
    done = subprocess.run(
        [sys.executable, "-c", _HASH_MEMORY, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    code, grown = done.stdout.split()
    assert code == "E_CRC"
    assert int(grown) < 50
