"""A load whose documents are uploaded once and named by id: the same tokens, and exactly the work that is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from counterproof.errors import EvidenceError, ExecutionError, InputError
from counterproof.plan import checks, predict, prereg
from counterproof.run import client_load
from counterproof.run.closed_loop import LoadRows
from counterproof.run.targets.intaglio_local import IntaglioLocal, IntaglioTarget
from counterproof.workload import build, sealed
from counterproof.workload.sealed import DocumentRequest, SealedRequest
from intaglio.config import from_flat

BLOCK, DOCUMENT, NEW = 16, 70, 4
KEPT = DOCUMENT // BLOCK * BLOCK
OWN = (9, 12, 10, 8, 11, 13)  # tokens behind the document, of six requests on two documents in turn
SLOTS = 3


def document(which: int) -> tuple[int, ...]:
    return tuple(3 + (which * 97 + 5 * i) % 400 for i in range(DOCUMENT))


def load(first: int = 0) -> list[SealedRequest]:
    return [
        DocumentRequest(
            index,
            (*document(first + index % 2), *(7 + (13 * index + i) % 400 for i in range(own))),
            NEW,
            seed=index,
            ignore_eos=True,
            document_tokens=DOCUMENT,
        )
        for index, own in enumerate(OWN)
    ]


def target(model: Path, folder: Path, enabled: bool, **changes: Any) -> IntaglioTarget:
    values = {
        "model": str(model),
        "dtype": "fp32",
        "threads.count": 1,
        "numerics.mode": "invariant",
        "kv_cache.blocks": 64,
        "context_cache.enabled": enabled,
        "context_cache.folder": str(folder),
    }
    return IntaglioLocal().start(from_flat(values | changes))


def run(tried: IntaglioTarget, requests: list[SealedRequest]) -> tuple[LoadRows, dict[str, int]]:
    before = tried.counters()
    rows, _ = client_load.run(tried, requests, SLOTS, 60.0)
    return rows, {name: value - before.get(name, 0) for name, value in tried.counters().items()}


def uploads(rows: LoadRows, kind: str = "contexts") -> list[dict[str, Any]]:
    return [event for event in rows.readings.events if event["kind"] == kind]


def kv_peak(rows: LoadRows) -> int:
    return max(row["kv_bytes_used"] for row in rows.readings.gauges)


def test_documents_by_id_give_the_same_tokens_with_exactly_the_rest_of_the_work(
    tiny_model: Path, tmp_path: Path
) -> None:
    plain, kept = (target(tiny_model, tmp_path, enabled) for enabled in (False, True))
    inlined, whole = run(plain, load())
    by_id, rest = run(kept, load())
    assert by_id.outputs == inlined.outputs and all(row["token_ids"] for row in by_id.outputs)
    assert [row["prompt_sha256"] for row in by_id.requests] == [
        row["prompt_sha256"] for row in inlined.requests
    ]
    work = sum(DOCUMENT + own + NEW - 1 for own in OWN)
    assert whole["tokens_computed"] == work
    assert rest["tokens_computed"] == work - len(OWN) * KEPT + 2 * KEPT
    assert rest["context_hit_tokens"] == len(OWN) * KEPT and rest["contexts_created"] == 2
    assert [row["cached_tokens"] for row in by_id.requests] == [KEPT] * len(OWN)
    assert [row["cached_tokens"] for row in inlined.requests] == [0] * len(OWN)
    assert sum(row["tokens_computed"] for row in by_id.requests) == work - len(OWN) * KEPT
    (event,) = uploads(by_id)
    price = kept.effective_config()["kv_cache.bytes_per_token"]
    assert (event["documents"], event["tokens"], event["kept_tokens"]) == (2, 2 * DOCUMENT, 2 * KEPT)
    assert event["bytes"] == 2 * (KEPT * price + 4 * DOCUMENT) and event["ms"] > 0
    assert not uploads(inlined)
    plain.close()
    kept.close()


def test_memory_is_the_documents_once_and_what_the_requests_add(tiny_model: Path, tmp_path: Path) -> None:
    """A request is 6 blocks; by id 2, since its document's 4 full ones are there already, once for all."""
    for enabled, blocks in ((False, SLOTS * 6), (True, 2 * 4 + SLOTS * 2)):
        tried = target(tiny_model, tmp_path, enabled)
        rows, _ = run(tried, load())
        price = tried.effective_config()["kv_cache.bytes_per_token"]
        assert kv_peak(rows) == blocks * BLOCK * price
        tried.close()


def test_documents_are_uploaded_before_the_load_and_the_last_load_s_are_gone(
    tiny_model: Path, tmp_path: Path
) -> None:
    tried = target(tiny_model, tmp_path, True)
    run(tried, load(first=5))
    rows, counts = run(tried, load())
    (event,) = uploads(rows)
    (setup,) = uploads(rows, "setup")
    assert setup["documents"] == 2 and setup["ms"] >= event["ms"] > 0
    assert setup["counters"]["contexts_created"] == counts["contexts_created"] == 2
    # The run's count holds the upload's work and the load's; a request waits for nothing but the engine.
    assert setup["counters"]["tokens_computed"] == 2 * KEPT
    assert counts["tokens_computed"] == 2 * KEPT + sum(row["tokens_computed"] for row in rows.requests)
    assert min(row["scheduled_ns"] for row in rows.requests) >= setup["time_ns"]
    waits = [row["sent_ns"] - row["scheduled_ns"] for row in rows.requests]
    assert max(waits) < setup["ms"] * 1e6
    again, counts = run(tried, load())
    assert not uploads(again) and not uploads(again, "setup") and counts["contexts_created"] == 0
    assert tried.drain().gauges == []
    assert len(list(tmp_path.rglob("ctx-*"))) == 2
    tried.close()
    assert not list(tmp_path.rglob("ctx-*"))


def test_logits_of_the_bitwise_comparison_are_the_same_by_id(tiny_model: Path, tmp_path: Path) -> None:
    plain, kept = (target(tiny_model, tmp_path, enabled) for enabled in (False, True))
    left, right = plain.compute_logits(load()), kept.compute_logits(load())
    for one, other in zip(left, right, strict=True):
        assert one.token_ids == other.token_ids and len(one.token_ids) == NEW
        assert one.rows.tobytes() == other.rows.tobytes()
        assert (one.output.cached_tokens, other.output.cached_tokens) == (0, KEPT)
    plain.close()
    kept.close()


def test_a_document_that_cannot_be_kept_ends_the_run(tiny_model: Path, tmp_path: Path) -> None:
    tried = target(tiny_model, tmp_path, True, **{"context_cache.quota_mib": 1, "kv_cache.blocks": 8})
    request = DocumentRequest(0, tuple(range(3, 203)), 1, seed=1, document_tokens=199)
    with pytest.raises(ExecutionError, match="a document of 199 tokens cannot be kept"):
        tried.keep_documents([request])
    tried.close()


def test_documents_are_sealed_and_other_workloads_stay_what_they_were(tmp_path: Path) -> None:
    path = tmp_path / "w.parquet"
    digest = sealed.write(path, load())
    assert sealed.read(path, digest) == load()
    shorter = [DocumentRequest(**{**vars(request), "document_tokens": 69}) for request in load()]
    assert sealed.sha256(shorter) != digest
    without = [SealedRequest(0, (1, 2, 3), 4, seed=5)]
    sealed.write(path, without)
    assert pq.read_schema(path).names == sealed.SCHEMA.names
    assert set(without[0].row()) == set(sealed.SCHEMA.names)
    # Known from before there were documents.
    assert sealed.sha256(without) == "d4ac4a8159723def87ab411542ff7570e698391141aadc8a6566aa9cda40a3d8"
    assert sealed.read(path) == without
    sealed.write(path, [DocumentRequest(0, (1, 2, 3), 4, seed=5, document_tokens=3)])
    with pytest.raises(EvidenceError, match="cannot begin with a document of 3"):
        sealed.read(path)


def test_the_experiment_registers_what_the_mechanism_costs() -> None:
    config = prereg.compose_arms("context_cache", []).baseline.config
    found = build.build(config, lambda text: [sum(word.encode()) for word in text.split()])
    shared = config.workload.document_tokens
    for requests in (*found.blocks, found.equivalence):
        assert {len(r.document) for r in requests if isinstance(r, DocumentRequest)} == {shared}
        assert all(isinstance(request, DocumentRequest) for request in requests)
    for requests in found.blocks:
        assert len({r.document for r in requests if isinstance(r, DocumentRequest)}) == 2
    price = predict.kv_bytes(config, found, 100)
    size = max(len(r.token_ids) + r.max_new_tokens - 1 for requests in found.blocks for r in requests)
    most = 2 * shared + 4 * (-(-size // 16) * 16 - shared)
    assert 2 * shared * 100 < price["predicted_bytes"] <= most * 100
    assert f"{2 * shared} tokens of documents in full blocks, kept once" in price["arithmetic"]


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("workload=pydoc_questions", "names none: take shared_documents"),
        ("target=openai", "is sent documents inlined; take intaglio_local or http"),
    ],
)
def test_a_study_whose_candidate_would_keep_nothing_is_refused(override: str, fault: str) -> None:
    config = prereg.compose_arms("context_cache", [override]).baseline.config
    with pytest.raises(InputError) as caught:
        checks.check(config, exploratory=False)
    assert any(fault in text for text in (str(caught.value), *caught.value.details))
