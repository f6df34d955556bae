"""Models are named and found by hash alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from counterproof_review.packet import models
from counterproof_review.packet.errors import PacketError


def test_a_model_is_found_by_hash_whatever_it_is_called(fake_model: Path, tmp_path: Path) -> None:
    lock = models.lock_folder(fake_model, "fake")
    elsewhere = tmp_path / "a" / "b"
    elsewhere.mkdir(parents=True)
    for number, name in enumerate(("config.json", "tokenizer.json", "model.safetensors")):
        (elsewhere / f"blob{number}").write_bytes((fake_model / name).read_bytes())
    decoy = tmp_path / "fake"
    decoy.mkdir()
    (decoy / "model.safetensors").write_bytes(bytes(2048))  # the right name and size, other content
    found = models.find([lock], [tmp_path])
    place = models.lay_out(lock, found[lock.reference], tmp_path / "laid" / "out")
    assert sorted(p.name for p in place.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (place / "model.safetensors").read_bytes() == (fake_model / "model.safetensors").read_bytes()


def test_a_missing_model_is_named_by_digest(fake_model: Path, tmp_path: Path) -> None:
    lock = models.lock_folder(fake_model, "smollm2-135m")
    (tmp_path / "config.json").write_bytes((fake_model / "config.json").read_bytes())
    with pytest.raises(PacketError) as caught:
        models.find([lock], [tmp_path, tmp_path / "absent"])
    weights = next(file for file in lock.files if file.name == "model.safetensors")
    assert caught.value.code == "E_MODEL_MISSING"
    assert caught.value.exit_code == 3
    assert any(weights.sha256 in detail for detail in caught.value.details)
    assert "counterproof models fetch smollm2-135m" in str(caught.value)


def test_a_locator_that_is_a_path_is_not_passed_on(fake_model: Path) -> None:
    assert models.lock_folder(fake_model, str(fake_model)).locator == ""
    assert models.lock_folder(fake_model, "../models/x").locator == ""
    assert models.lock_folder(fake_model, "owner/name").locator == "owner/name"


def test_a_model_of_many_gigabytes_is_hashed_in_bounded_memory(fake_model: Path, tmp_path: Path) -> None:
    """A sparse file of the same size as the locked one is read through, not into memory."""
    size = 1 << 30
    with (tmp_path / "big").open("wb") as out:
        out.truncate(size)
    code = (
        "import resource, sys; from pathlib import Path;"
        "from counterproof_review.packet import models;"
        "from counterproof_review.packet.errors import PacketError;"
        f"lock = models.ModelLock('0' * 64, '', (models.ModelFile('m.safetensors', '1' * 64, {size}),));"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    models.find([lock], [Path(sys.argv[1])])\n"
        "except PacketError as error:\n    print(error.code, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    found, grown = done.stdout.split()
    assert found == "E_MODEL_MISSING", done.stderr
    assert int(grown) < 50
