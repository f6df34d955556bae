"""Fixtures of the packet's tests: a sealed synthetic study and the packet built from it."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterproof_review.packet import archive, manifest
from counterproof_review.packet.build import Built, build
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.labels import PacketKeys
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.verify import Verification, verify
from intaglio.compute.native import build as native

SUPPORT = Path(__file__).resolve().parents[1] / "support"
KEYS = PacketKeys(label_key=bytes(range(32)), nonce=bytes(range(32, 64)))


def _load(name: str) -> ModuleType:
    key = f"counterproof_tests_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, SUPPORT / f"{name}.py")
        if spec is None or spec.loader is None:
            raise ImportError(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


@pytest.fixture(scope="session", autouse=True)
def _kernels_are_compiled_once() -> Iterator[None]:
    """Whatever home a test gives a party, the kernels that are kept for this checkout serve it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTAGLIO_CACHE", str(native.cache_folder().parent))
        yield


class PacketFiles:
    """A packet's members as a dictionary that tests edit and pack again, with or without a fitting manifest."""

    def __init__(self, files: dict[str, bytes], folder: Path) -> None:
        self.files, self.folder = files, folder

    @staticmethod
    def dump(value: Any) -> bytes:
        """Canonical bytes of a document, by other code than the packet's own."""
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return (text + "\n").encode()

    def edit(self, path: str, change: Callable[[dict[str, Any]], Any]) -> None:
        """Change one document in place."""
        document = json.loads(self.files[path])
        change(document)
        self.files[path] = self.dump(document)

    def pack(self, *, honest_manifest: bool = True) -> Path:
        """Write the files; with `honest_manifest` as a forger would who also rewrites the manifest."""
        files = dict(self.files)
        if honest_manifest:
            files.pop("MANIFEST.jsonl", None)
            files["MANIFEST.jsonl"] = manifest.build(files)
        path = self.folder / "edited.rep.zip"
        archive.write(path, files)
        return path

    def refusal(self, *, honest_manifest: bool = True) -> PacketError:
        return refusal(self.pack(honest_manifest=honest_manifest))


def check(path: Path, root: str | None = None) -> Verification:
    """Verify a packet file."""
    report = Verification()
    with Archive.open(path) as opened:
        verify(opened, report, root=root)
    return report


def refusal(path: Path) -> PacketError:
    """The error with which a packet is refused."""
    with pytest.raises(PacketError) as caught:
        check(path)
    return caught.value


@pytest.fixture(scope="session")
def support() -> ModuleType:
    """Builds studies that can be packed."""
    return _load("packet_study")


@pytest.fixture(scope="session")
def parties_module() -> ModuleType:
    """Three parties of a review, and machines that measure by arithmetic."""
    return _load("review_parties")


@pytest.fixture(scope="session")
def reviewed(support: ModuleType, parties_module: ModuleType, fake_model: Path, tmp_path_factory: Any) -> Any:
    """A finished review with its parties and its study; read it, never change it."""
    base = tmp_path_factory.mktemp("reviewed")
    return _load("whole_review").run(support, parties_module, fake_model, base)


@pytest.fixture(scope="session")
def challenge_packet() -> ModuleType:
    """Packets whose arms run on the model that ships."""
    return _load("challenge_packet")


@pytest.fixture(scope="session")
def fake_model(support: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.fake_model(tmp_path_factory.mktemp("models") / "fake")


@pytest.fixture(scope="session")
def study(support: ModuleType, fake_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed study; read it, never change it."""
    return support.build(tmp_path_factory.mktemp("store"), fake_model)


@pytest.fixture(scope="session")
def built(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(study, out=tmp_path_factory.mktemp("packet") / "p.rep.zip", keys=KEYS)


@pytest.fixture(scope="session")
def keys() -> PacketKeys:
    return KEYS


@pytest.fixture
def members(built: Built, tmp_path: Path) -> PacketFiles:
    """The built packet's files, free to be edited."""
    with Archive.open(built.path) as opened:
        return PacketFiles({name: opened.read(name, 1 << 30) for name in opened.members}, tmp_path)


@pytest.fixture(scope="session")
def verify_file() -> Callable[..., Verification]:
    return check


@pytest.fixture(scope="session")
def refused() -> Callable[[Path], PacketError]:
    return refusal
