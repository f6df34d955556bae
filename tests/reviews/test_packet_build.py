"""Building: deterministic, closed, with keys outside, and refusing what must not leave."""

from __future__ import annotations

import io
import json
import math
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

from counterproof.errors import EXIT_INPUT, EvidenceError, InputError
from counterproof.measure.load import load_study
from counterproof_review.packet import labels, layout, leaks, public
from counterproof_review.packet.build import Built, build
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.labels import PacketKeys

ARMS = ("baseline", "candidate", "again", "slowed")


def document(path: Path, name: str) -> dict[str, Any]:
    with zipfile.ZipFile(path) as packet:
        value: dict[str, Any] = json.loads(packet.read(name))
        return value


# -- determinism ------------------------------------------------------------------------------------------


def test_two_builds_with_the_same_keys_are_the_same_bytes(
    study: Path, built: Built, keys: PacketKeys, tmp_path: Path
) -> None:
    other = build(study, out=tmp_path / "q.rep.zip", keys=keys)
    assert other.path.read_bytes() == built.path.read_bytes()
    assert (other.root, other.sha256, other.packet_id) == (built.root, built.sha256, built.packet_id)


def test_deterministic_build_in_another_zone_locale_umask_and_place(
    study: Path, built: Built, keys: PacketKeys, tmp_path: Path
) -> None:
    key_file = tmp_path / "k.json"
    labels.write_keys(key_file, keys)
    target = tmp_path / "q.rep.zip"
    code = "import os, sys; os.umask(0o077); from counterproof.cli import main; sys.exit(main(sys.argv[1:]))"
    env = {
        **os.environ,
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "C",
        "PYTHONHASHSEED": "4242",
        "COUNTERPROOF_STORE": str(study.parents[1]),
    }
    argv = [
        sys.executable,
        "-c",
        code,
        "packet",
        "build",
        study.name,
        "--keys",
        str(key_file),
        "--out",
        str(target),
    ]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == built.path.read_bytes()


def test_the_order_of_a_plans_keys_does_not_matter(
    support: ModuleType, fake_model: Path, built: Built, keys: PacketKeys, tmp_path: Path
) -> None:
    shuffled = support.build(tmp_path / "store", fake_model, shuffled=True)
    assert build(shuffled, keys=keys).path.read_bytes() == built.path.read_bytes()


def test_other_keys_give_other_names_and_another_id(study: Path, built: Built, tmp_path: Path) -> None:
    other = build(study, out=tmp_path / "q.rep.zip")
    assert other.packet_id != built.packet_id
    assert not set(document(other.path, layout.RESULTS)["arms"].values()) & set(
        document(built.path, layout.RESULTS)["arms"].values()
    )


def test_results_do_not_move_the_public_part(
    support: ModuleType, fake_model: Path, keys: PacketKeys, tmp_path: Path
) -> None:
    """Two studies that differ only in what the candidate gained: all public files but the noise are equal."""
    packets = []
    for name, ratio in (("fast", 0.5), ("slow", 1.3)):
        folder = support.build(tmp_path / name, fake_model, decode_ratio=ratio)
        packets.append(build(folder, keys=keys).path)
    with zipfile.ZipFile(packets[0]) as first, zipfile.ZipFile(packets[1]) as second:
        assert first.namelist() == second.namelist()
        moved = {n for n in first.namelist() if first.read(n) != second.read(n)}
    assert moved == {layout.RESULTS, layout.RESULT_ROWS, layout.MANIFEST}


# -- keys -------------------------------------------------------------------------------------------------


def test_keys_lie_beside_the_study_for_their_owner_alone_and_never_in_the_packet(
    study: Path, built: Built, keys: PacketKeys
) -> None:
    path = study / "packets" / f"{built.packet_id}.key.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert labels.read_keys(path) == keys
    data = built.path.read_bytes()
    for secret in (keys.label_key, keys.nonce):
        assert secret not in data
        assert secret.hex().encode() not in data


def test_a_key_file_is_never_overwritten(tmp_path: Path, keys: PacketKeys) -> None:
    path = tmp_path / "k.json"
    labels.write_keys(path, keys)
    labels.write_keys(path, keys)
    with pytest.raises(PacketError, match="E_DESTINATION"):
        labels.write_keys(path, PacketKeys.fresh())
    assert labels.read_keys(path) == keys


@pytest.mark.parametrize(
    "text", ["", "{}", '{"schema":"x"}', '{"schema":"replication-keys/1","label_key":"00","nonce":"00"}']
)
def test_broken_keys(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k.json"
    path.write_text(text)
    with pytest.raises(PacketError):
        labels.read_keys(path)


def test_opaque_names_depend_on_the_key_and_never_collide() -> None:
    for _ in range(50):
        keys = labels.fresh_keys(ARMS)
        names = labels.opaque_names(keys, ARMS)
        assert len(set(names.values())) == 4
        assert all(labels.OPAQUE.fullmatch(name) for name in names.values())


# -- content ----------------------------------------------------------------------------------------------


def test_arms_have_the_same_keys_in_the_same_order_and_name_no_place(built: Built, fake_model: Path) -> None:
    with zipfile.ZipFile(built.path) as packet:
        arms = [packet.read(n) for n in packet.namelist() if n.startswith(layout.ARMS)]
    keys = [list(json.loads(arm)["engine"]) for arm in arms]
    assert len(arms) == 4
    assert all(k == keys[0] == sorted(k) for k in keys)
    assert all(str(fake_model).encode() not in arm for arm in arms)


def test_the_public_part_holds_no_trace_of_study_runs_places_or_times(
    study: Path, built: Built, fake_model: Path
) -> None:
    with zipfile.ZipFile(built.path) as packet:
        public_bytes = b"\n".join(
            name.encode() + packet.read(name) for name in packet.namelist() if leaks.is_public(name)
        )
    lower = public_bytes.lower()
    for word in (
        *ARMS,
        study.name,
        str(study),
        str(fake_model),
        fake_model.name,
        "secret_place",
        "2026-01-02",
    ):
        assert word.lower().encode() not in lower, word


def test_an_input_files_digest_is_the_registered_workload(study: Path, built: Built) -> None:
    plan = json.loads((study / "plan.json").read_text())
    with zipfile.ZipFile(built.path) as packet:
        rows = [json.loads(line) for line in packet.read(layout.MANIFEST).splitlines()]
    digests = {row["path"]: row["sha256"] for row in rows}
    for block, registered in enumerate(plan["workload"]["sha256_by_block"]):
        assert digests[layout.input_path(block)] == registered


def test_results_and_noise_are_those_of_the_study(study: Path, built: Built) -> None:
    """Recomputed from the Parquet files of the records by a few lines of their own."""
    results = document(built.path, layout.RESULTS)
    runs = load_study(study)
    medians: dict[str, list[float]] = {}
    for arm in ARMS:
        for block in range(6):
            frame = runs.runs[(block, arm)].requests
            tpot = (frame["last_token_ns"] - frame["first_token_ns"]) / (frame["output_tokens"] - 1) / 1e6
            medians.setdefault(arm, []).append(sorted(tpot)[math.ceil(0.5 * len(tpot)) - 1])
    for arm in ARMS:
        assert results["per_block"][results["arms"][arm]] == pytest.approx(medians[arm], rel=1e-12)
    ratios = [math.log(a / b) for a, b in zip(medians["again"], medians["baseline"])]
    mean = sum(ratios) / 6
    sd = math.sqrt(sum((r - mean) ** 2 for r in ratios) / 5)
    assert document(built.path, layout.NOISE)["sd_log_ratio"] == pytest.approx(sd, rel=1e-9)
    assert results["log_ratios"]["candidate"] == pytest.approx(
        [math.log(a / b) for a, b in zip(medians["candidate"], medians["baseline"])], rel=1e-12
    )


def test_times_in_the_authors_rows_start_at_zero_and_errors_are_not_quoted(
    support: ModuleType, fake_model: Path, tmp_path: Path
) -> None:

    folder = support.build(tmp_path, fake_model, candidate_failures=1)
    with zipfile.ZipFile(build(folder).path) as packet:
        frame = pq.read_table(io.BytesIO(packet.read(layout.RESULT_ROWS))).to_pandas()
    assert set(frame.groupby(["arm", "block"])["scheduled_ns"].min()) == {0}
    assert (frame["status"] != "ok").sum() == 6
    assert frame["error"].isna().all()


# -- what is refused --------------------------------------------------------------------------------------


def test_a_study_that_is_not_whole(support: ModuleType, fake_model: Path, tmp_path: Path) -> None:
    folder = support.build(tmp_path, fake_model, missing=((5, "candidate"),))
    with pytest.raises(InputError, match="5 of 6 blocks") as caught:
        build(folder)
    assert caught.value.exit_code == EXIT_INPUT
    assert not list((folder).glob("packets/*"))


def test_a_calibration(support: ModuleType, fake_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="claims nothing"):
        build(support.build(tmp_path, fake_model, calibration=True))


def test_a_tampered_record(support: ModuleType, fake_model: Path, tmp_path: Path) -> None:
    folder = support.build(tmp_path, fake_model)
    target = folder / "runs" / "03-candidate-1" / "requests.parquet"
    data = bytearray(target.read_bytes())
    data[100] ^= 1
    target.write_bytes(bytes(data))
    with pytest.raises(EvidenceError, match=r"03-candidate-1/requests\.parquet"):
        build(folder)


def test_a_tampered_workload(support: ModuleType, fake_model: Path, tmp_path: Path) -> None:
    folder = support.build(tmp_path, fake_model)
    (folder / "workloads" / "02.parquet").write_bytes(b"x")
    with pytest.raises(EvidenceError, match=r"02\.parquet"):
        build(folder)


def test_another_model_than_the_one_measured(support: ModuleType, tmp_path: Path) -> None:
    model = support.fake_model(tmp_path / "model")
    folder = support.build(tmp_path / "store", model)
    (model / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(PacketError, match="E_STUDY"):
        build(folder)


def test_a_leak_planted_in_what_the_plan_gives_to_the_public_part(
    support: ModuleType, fake_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allow-list is the first wall; here it is opened by hand, and the lint is the second."""
    folder = support.build(tmp_path, fake_model)
    original = public.lineage

    def talkative(plan_sha256: str) -> dict[str, Any]:
        return {**original(plan_sha256), "from": f"runs of {folder.name}"}

    monkeypatch.setattr(public, "lineage", talkative)
    with pytest.raises(PacketError, match="E_LEAK"):
        build(folder)
    assert not list(folder.glob("packets/*.zip"))
