"""Studies of servers: which of them a packet can bring along, and that arrival times are part of what it brings."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from counterproof.errors import InputError
from counterproof.plan.schema import ServerConfig
from counterproof.workload import sealed
from counterproof.workload.sealed import SealedRequest
from counterproof_review.packet import archive, inputs, layout, manifest, offline, servers
from counterproof_review.packet.reader import Archive


def plan(target: str, **server: Any) -> dict[str, Any]:
    values = {**dataclasses.asdict(ServerConfig()), **server}
    return {"target": target, "arms": {"baseline": {"config": {f"server.{k}": v for k, v in values.items()}}}}


@pytest.mark.parametrize(
    ("target", "server"),
    [
        ("intaglio_local", {}),
        (
            "intaglio_local",
            {"base_url": "http://127.0.0.1:1"},
        ),  # recorded with every arm, used by servers alone
        ("http", {}),
        ("http", {"effective_path": "/intaglio/effective", "ready_s": 30.0}),
    ],
)
def test_what_starts_from_the_packet_alone_is_packed(target: str, server: dict[str, Any]) -> None:
    servers.check(plan(target, **server))


@pytest.mark.parametrize(
    ("target", "server", "named"),
    [
        ("openai", {"command": ["llama-server"]}, "target openai"),
        ("http", {"base_url": "http://127.0.0.1:8000"}, "set server.base_url"),
        ("http", {"command": ["intaglio", "serve"], "prompts": "text"}, "set server.command, server.prompts"),
        ("http", {"dialect": "openai"}, "set server.dialect"),
    ],
)
def test_another_server_is_refused_with_what_to_do(target: str, server: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named) as caught:
        servers.check(plan(target, **server))
    assert "target=intaglio_local" in caught.value.details[0]


def test_the_projects_own_server_settings_can_be_packed(repository: Path) -> None:
    import yaml

    own = yaml.safe_load(
        (repository / "experiments" / "server" / "intaglio.yaml").read_text(encoding="utf-8")
    )
    servers.check(plan("http", **own))


_TALK = """
import socket
from counterproof_review.packet import loopback
def talk():
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), 5).close()
        return True
    except OSError:
        return False
print(talk(), loopback.bring_up(), talk())
"""


def test_a_server_is_reached_where_the_network_is_off() -> None:
    prefix = offline.namespace_prefix()
    if not prefix:
        pytest.skip("this machine grants no network namespace")
    done = subprocess.run([*prefix, sys.executable, "-c", _TALK], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "True", "True"], done.stderr


def test_arrival_times_travel_with_the_requests_and_are_their_identity(tmp_path: Path) -> None:
    requests = [
        SealedRequest(request_index=i, token_ids=(5, 6 + i), max_new_tokens=2, seed=i, arrival_ns=at)
        for i, at in enumerate((0, 1_500_000, 1_500_001))
    ]
    registered = sealed.write(tmp_path / "study.parquet", requests)
    path = layout.input_path(0)
    files: dict[str, bytes | Path] = {path: inputs.to_lines(requests)}
    files[layout.MANIFEST] = manifest.build(files)
    archive.write(tmp_path / "p.rep.zip", files)
    with Archive.open(tmp_path / "p.rep.zip") as opened:
        assert list(inputs.read(opened, path)) == requests
        assert inputs.unpack(opened, path, tmp_path / "unpacked.parquet") == registered
    assert sealed.read(tmp_path / "unpacked.parquet", registered) == requests
    shifted = [dataclasses.replace(r, arrival_ns=(r.arrival_ns or 0) + 1) for r in requests]
    assert sealed.write(tmp_path / "shifted.parquet", shifted) != registered
