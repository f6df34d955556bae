"""Requests that begin with a document stand in a packet as such, so that a replay uploads it as the study did."""

from __future__ import annotations

import json
from typing import Any

import pytest

from counterproof.workload import sealed
from counterproof.workload.sealed import DocumentRequest, SealedRequest
from counterproof_review.packet import inputs
from counterproof_review.packet.errors import PacketError

LOAD = [
    DocumentRequest(0, (1, 2, 3, 4), 5, seed=1, document_tokens=3),
    SealedRequest(1, (1, 2), 5, seed=2),
]


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in inputs.to_lines(LOAD).splitlines()]


def test_a_document_comes_back_and_the_file_keeps_the_workload_s_identity() -> None:
    found = [inputs._request(row, index, "w") for index, row in enumerate(rows())]
    assert found == LOAD and [type(request) for request in found] == [DocumentRequest, SealedRequest]
    assert sealed.sha256(found) == sealed.sha256(LOAD)
    assert "document_tokens" not in rows()[1]


@pytest.mark.parametrize("value", [0, 4, -1, "3", 3.0, True])
def test_a_document_that_cannot_be_is_refused(value: object) -> None:
    row = rows()[0] | {"document_tokens": value}
    with pytest.raises(PacketError) as caught:
        inputs._request(row, 0, "w")
    assert caught.value.code == "E_ROWS"
