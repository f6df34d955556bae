"""A packet or bundle with something in it that could run or leave its folder: every command refuses it, no canary appears.

Each attack carries a canary, a file that comes to be when the attack succeeds, and each is shown to sing when something
careless reads it: otherwise its silence would prove nothing.
"""

from __future__ import annotations

import json
import pickle
import stat
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate

from counterproof.cli import main
from counterproof_review.packet import archive as container
from counterproof_review.packet import layout, manifest
from counterproof_review.packet.archive import Member
from counterproof_review.packet.build import Built
from counterproof_review.packet.reader import Archive

Files = dict[str, bytes]


class Opens:
    """Opens a file for writing when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, (str(self.path), "w")


@dataclass(frozen=True)
class Attack:
    """`code`: with which it is refused, "" where a field that nothing reads is ignored; `arm(files, canary)` changes a packet; `careless(packet, folder, canary)` is a reader that falls for it."""

    code: str
    arm: Callable[[Files, Path], list[tuple[zipfile.ZipInfo | str, bytes]]]
    careless: Callable[[Path, Path, Path], object]


def first_arm(files: Mapping[str, bytes]) -> str:
    return min(path for path in files if path.startswith(layout.ARMS))


def entries(files: Files, *more: tuple[zipfile.ZipInfo | str, bytes]) -> list[Any]:
    """All members, with a manifest as a forger would write it for those that a manifest can name."""
    kept = {path: data for path, data in files.items() if path != layout.MANIFEST}
    return [*kept.items(), (layout.MANIFEST, manifest.build(kept)), *more]


def document(files: Files, path: str, change: Callable[[dict[str, Any]], None]) -> Files:
    value = json.loads(files[path])
    change(value)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {**files, path: f"{text}\n".encode()}


def target(files: Files, canary: Path) -> list[Any]:
    call = {"_target_": "builtins.open", "_args_": [str(canary), "w"]}
    return entries(document(files, first_arm(files), lambda d: d["engine"].update({"device": call})))


def root_target(files: Files, canary: Path) -> list[Any]:
    call = {"_target_": "builtins.open", "_args_": [str(canary), "w"]}
    return entries(document(files, layout.RUN_LOCK, lambda d: d["workload"].update(more=call)))


def shell(files: Files, canary: Path) -> list[Any]:
    command = ["/bin/sh", "-c", f"touch {canary}"]
    return entries(document(files, layout.RUN_LOCK, lambda d: d.update(executor=command)))


def pickled(files: Files, canary: Path) -> list[Any]:
    return entries({**files, layout.NOISE: pickle.dumps(Opens(canary), 4)})


def pickled_inputs(files: Files, canary: Path) -> list[Any]:
    return entries({**files, layout.WARMUP: pickle.dumps(Opens(canary), 0)})


def outside(files: Files, canary: Path) -> list[Any]:
    return entries(files, (f"../{canary.name}", b"out"))


def absolute(files: Files, canary: Path) -> list[Any]:
    return entries(files, (str(canary), b"out"))


def symlink(files: Files, canary: Path) -> list[Any]:
    link = zipfile.ZipInfo("replay/link")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return entries(files, (link, str(canary.parent).encode()), (f"replay/link/{canary.name}", b"out"))


def duplicate(files: Files, canary: Path) -> list[Any]:
    second = document(files, layout.RUN_LOCK, lambda d: d.update(executor=f"touch {canary}"))
    return entries(files, (layout.RUN_LOCK, second[layout.RUN_LOCK]))


def case(files: Files, canary: Path) -> list[Any]:
    second = document(files, layout.RUN_LOCK, lambda d: d.update(executor=f"touch {canary}"))
    return entries(files, (layout.RUN_LOCK.upper(), second[layout.RUN_LOCK]))


def bomb(files: Files, canary: Path) -> list[Any]:
    packed = zipfile.ZipInfo("replay/bomb.json")
    packed.compress_type = zipfile.ZIP_DEFLATED
    return entries(files, (packed, b"0" * (64 << 20)))


def unpack(packet: Path, folder: Path, fold: Callable[[str], str] = str) -> None:
    """As careless as can be: names as they stand, links as links, the last of two wins."""
    with zipfile.ZipFile(packet) as archive:
        for one in archive.infolist():
            place = folder / fold(one.filename)
            place.parent.mkdir(parents=True, exist_ok=True)
            if stat.S_ISLNK(one.external_attr >> 16):
                place.symlink_to(archive.read(one).decode())
            else:
                place.write_bytes(archive.read(one))


def executes(packet: Path, folder: Path, fold: Callable[[str], str] = str) -> None:
    unpack(packet, folder, fold)
    command = json.loads((folder / layout.RUN_LOCK).read_bytes())["executor"]
    subprocess.run(command, shell=isinstance(command, str), check=False, timeout=20)


def loads(member: str) -> Callable[[Path, Path, Path], object]:
    def careless(packet: Path, folder: Path, _: Path) -> object:
        unpack(packet, folder)
        return pickle.loads((folder / member).read_bytes()).close()

    return careless


def instantiates(packet: Path, folder: Path, _: Path) -> None:
    unpack(packet, folder)
    for path in (*(folder / layout.ARMS).iterdir(), folder / layout.RUN_LOCK):
        instantiate(json.loads(path.read_bytes()))


def swells(packet: Path, folder: Path, canary: Path) -> None:
    """A bomb's canary: more bytes on the disk than the packet has, by a hundred times."""
    unpack(packet, folder)
    if (folder / "replay/bomb.json").stat().st_size > 100 * packet.stat().st_size:
        canary.touch()


ATTACKS: dict[str, Attack] = {
    "_target_ in an arm": Attack("E_ARMS", target, instantiates),
    "_target_ in a lock": Attack("", root_target, instantiates),
    "argv with a shell": Attack("E_SCHEMA", shell, lambda packet, folder, _: executes(packet, folder)),
    "pickle": Attack("E_PICKLE", pickled, loads(layout.NOISE)),
    "pickle as text": Attack("E_PICKLE", pickled_inputs, loads(layout.WARMUP)),
    "path outside": Attack("E_PATH", outside, lambda packet, folder, _: unpack(packet, folder)),
    "absolute path": Attack("E_PATH", absolute, lambda packet, folder, _: unpack(packet, folder)),
    "symlink": Attack("E_SYMLINK", symlink, lambda packet, folder, _: unpack(packet, folder)),
    "duplicate names": Attack("E_DUPLICATE", duplicate, lambda packet, folder, _: executes(packet, folder)),
    "names that differ in case": Attack(
        "E_DUPLICATE", case, lambda packet, folder, _: executes(packet, folder, str.lower)
    ),
    "zip bomb": Attack("E_BOMB", bomb, swells),
}


def pack(path: Path, members: list[tuple[zipfile.ZipInfo | str, bytes]]) -> Path:
    """The packet's own strict form but for the attack itself, so that nothing else is a reason to refuse it."""
    body, directory, ordered = b"", b"", sorted(members, key=lambda one: container.order_key(named(one[0])))
    for name, data in ordered:
        member = Member(named(name), len(data), zlib.crc32(data), len(body))
        local, central = container.local_header(member), container.central_header(member)
        if isinstance(name, zipfile.ZipInfo) and name.compress_type == zipfile.ZIP_DEFLATED:
            deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
            data = deflate.compress(data) + deflate.flush()
            local, central = deflated(local, 8, len(data)), deflated(central, 10, len(data))
        elif isinstance(name, zipfile.ZipInfo):
            central = central[:38] + struct.pack("<I", name.external_attr) + central[42:]
        body += local + data
        directory += central
    path.write_bytes(body + directory + container.end_record(len(ordered), len(directory), len(body)))
    return path


def named(name: zipfile.ZipInfo | str) -> str:
    return name.filename if isinstance(name, zipfile.ZipInfo) else name


def deflated(header: bytes, method: int, size: int) -> bytes:
    """The header with another method and stored size, which stands ten bytes behind it."""
    header = header[:method] + struct.pack("<H", zipfile.ZIP_DEFLATED) + header[method + 2 :]
    return header[: method + 10] + struct.pack("<I", size) + header[method + 14 :]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ATTACKS)
def test_nothing_runs_and_nothing_leaves(
    built: Built,
    tmp_path: Path,
    fake_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    place, canary = tmp_path / "place", tmp_path / "canary"
    place.mkdir()
    with Archive.open(built.path) as archive:
        files = {name: archive.read(name, 1 << 30) for name in archive.members}
    packet = pack(place / "hostile.rep.zip", ATTACKS[kind].arm(files, canary))
    monkeypatch.chdir(place)
    monkeypatch.setenv("COUNTERPROOF_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COUNTERPROOF_KEYS", str(tmp_path / "keys"))
    before = sorted(place.iterdir())
    models = ["--models", str(fake_model.parent)]
    for command in (
        ["packet", "verify", str(packet)],
        ["packet", "show", str(packet)],
        ["packet", "show", str(packet), layout.RUN_LOCK],
        ["packet", "replay", str(packet), "--dir", str(place / "replay"), "--blocks", "1", *models],
        ["packet", "export-crate", str(packet), str(place / "crate")],
    ):
        code = main(command)
        assert not canary.exists(), command
        if ATTACKS[kind].code:
            assert code in (2, 5), command
            assert f"error: {ATTACKS[kind].code}" in capsys.readouterr().err, command
            assert sorted(place.iterdir()) == before, command
    ATTACKS[kind].careless(packet, tmp_path / "careless", canary)
    assert canary.exists(), "a canary that never sings proves nothing"


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ["path outside", "absolute path", "symlink", "duplicate names", "zip bomb"])
def test_nothing_leaves_a_bundle_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parties_module: Any, kind: str
) -> None:
    """What a party imports is another's file, too."""
    parties = parties_module.Parties(tmp_path / "homes")
    place, canary = tmp_path / "review", tmp_path / "canary"
    assert parties.do("reviewer", "review", "init", place, "--registry", parties.registry) == 0
    monkeypatch.setattr(manifest, "build", lambda _: b"")
    files = {"registry.dsse.json": parties.registry.read_bytes(), layout.RUN_LOCK: b'{"executor":""}\n'}
    hostile = pack(tmp_path / "bundle.zip", ATTACKS[kind].arm(files, canary))
    before = sorted(place.rglob("*"))
    assert parties.do("reviewer", "review", "import", hostile, "--review", place) in (2, 5)
    assert sorted(place.rglob("*")) == before
    assert not canary.exists()
