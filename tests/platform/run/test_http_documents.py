"""Documents kept by intaglio's server: uploaded before the load, named by id, deleted at the end, each in time."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from counterproof.errors import ExecutionError
from counterproof.plan.schema import ServerConfig
from counterproof.run import client_load
from counterproof.run.closed_loop import LoadRows
from counterproof.run.targets.http import fetch
from counterproof.run.targets.http.bodies import body_of
from counterproof.run.targets.http.caches import ServerKeeper
from counterproof.run.targets.http.http_target import HttpTarget
from counterproof.run.targets.http.kinds import IntaglioHttp
from counterproof.run.targets.http.pool import Address
from counterproof.workload.sealed import DocumentRequest, SealedRequest
from intaglio.config import from_flat

BLOCK, DOCUMENT, NEW = 16, 70, 4
KEPT = DOCUMENT // BLOCK * BLOCK
OWN = (9, 12, 10, 8)


def load() -> list[SealedRequest]:
    return [
        DocumentRequest(
            index,
            (
                *(3 + ((index % 2) * 97 + 5 * i) % 200 for i in range(DOCUMENT)),
                *(7 + (13 * index + i) % 200 for i in range(own)),
            ),
            NEW,
            seed=index,
            ignore_eos=True,
            document_tokens=DOCUMENT,
        )
        for index, own in enumerate(OWN)
    ]


@contextmanager
def served(folder: Path, enabled: bool) -> Iterator[HttpTarget]:
    folder.mkdir()
    values = {
        "model": "tiny",
        "threads.count": 1,
        "numerics.mode": "invariant",
        "kv_cache.blocks": 64,
        "context_cache.enabled": enabled,
        "context_cache.folder": str(folder / "contexts"),
    }
    target = IntaglioHttp().connect(from_flat(values), ServerConfig(ready_s=120.0), folder)
    try:
        yield target
    finally:
        target.close()


def run(target: HttpTarget) -> tuple[LoadRows, dict[str, Any], dict[str, int]]:
    before = target.counters()
    rows, client = client_load.run(target, load(), 2, 60.0)
    return rows, client, {name: value - before.get(name, 0) for name, value in target.counters().items()}


def test_a_load_by_id_over_http_gives_the_same_tokens_with_the_rest_of_the_work(tmp_path: Path) -> None:
    with served(tmp_path / "off", False) as plain:
        inlined, _, whole = run(plain)
    with served(tmp_path / "on", True) as kept:
        by_id, client, rest = run(kept)
        assert len(list((tmp_path / "on").rglob("ctx-*"))) == 2
        address, headers = kept._address, kept._headers
        assert len(fetch.get_json(address, "/v1/caches", headers)["data"]) == 2
        again = client_load.set_up(kept, load())
        deleted_before = kept.counters().get("contexts_deleted", 0)
        kept._documents.close()  # what close() does before it ends the server
        assert fetch.get_json(address, "/v1/caches", headers)["data"] == []
    assert again == [] and deleted_before == 0
    assert not list((tmp_path / "on").rglob("ctx-*"))
    assert [row["status"] for row in by_id.requests] == ["ok"] * len(OWN)
    assert by_id.outputs == inlined.outputs and all(len(row["token_ids"]) == NEW for row in by_id.outputs)
    assert [row["cached_tokens"] for row in by_id.requests] == [KEPT] * len(OWN)
    assert [row["cached_tokens"] for row in inlined.requests] == [0] * len(OWN)
    work = sum(DOCUMENT + own + NEW - 1 for own in OWN)
    assert whole["tokens_computed"] == work
    assert rest["tokens_computed"] == work - len(OWN) * KEPT + 2 * KEPT
    assert client["prompts_unlike"] == 0
    (setup,) = [event for event in by_id.readings.events if event["kind"] == "setup"]
    (event,) = [event for event in by_id.readings.events if event["kind"] == "contexts"]
    assert (setup["documents"], event["kept_tokens"]) == (2, 2 * KEPT)
    assert setup["counters"]["tokens_computed"] == 2 * KEPT and setup["ms"] >= event["ms"] > 0
    assert min(row["scheduled_ns"] for row in by_id.requests) >= setup["time_ns"]
    assert not [event for event in inlined.readings.events if event["kind"] in ("setup", "contexts")]


def test_a_body_names_the_context_and_holds_what_stands_behind_it() -> None:
    request = load()[1]
    own = request.token_ids[DOCUMENT:]
    body = json.loads(body_of(request, ServerConfig(), "m", lambda _: "", prompt=own, context="ctx-1"))
    assert (body["context"], body["prompt"]) == ("ctx-1", list(own))
    body = json.loads(body_of(request, ServerConfig(), "m", lambda _: ""))
    assert "context" not in body and body["prompt"] == list(request.token_ids)


def test_a_server_that_refuses_or_keeps_silent_ends_the_run_in_time(tmp_path: Path) -> None:
    with served(tmp_path / "off", False) as plain:  # no context cache there: the server refuses the upload
        keeper = ServerKeeper(plain._address, {}, "tiny", 30.0)
        with pytest.raises(ExecutionError, match="a document of 3 tokens cannot be kept: HTTP 4"):
            keeper.create((5, 6, 7))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        keeper = ServerKeeper(Address("127.0.0.1", silent.getsockname()[1]), {}, "tiny", 0.2)
        with pytest.raises(ExecutionError, match=r"no answer within 0.2 s") as caught:
            keeper.create((5, 6, 7))
    assert "server.ready_s" in caught.value.details[0]


def test_a_context_that_cannot_be_deleted_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    ServerKeeper(Address("127.0.0.1", port), {}, "tiny", 1.0).delete("ctx-1")
    assert "ctx-1 was not deleted; it expires by itself" in capsys.readouterr().err
