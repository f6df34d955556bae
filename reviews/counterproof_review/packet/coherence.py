"""Whether the documents of one packet tell the same story: each is right alone, a forger may mix them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterproof.measure.metrics import METRICS
from counterproof_review.packet import layout
from counterproof_review.packet.arms import MODEL_PATHS
from counterproof_review.packet.errors import PacketError
from intaglio.config import Scalar

Documents = Mapping[str, Mapping[str, Any]]


def check_metric(documents: Documents) -> None:
    """Protocol, noise and results speak of one metric, whose direction is the one it has (E_STUDY)."""
    results = documents.get(layout.RESULTS)
    told = [documents[layout.PREREG]["primary"], documents[layout.NOISE]]
    told += [results["primary"]] if results is not None else []
    stated = {(document["metric"], document["statistic"]) for document in told}
    if len(stated) != 1:
        raise PacketError("E_STUDY", "its parts name different primary metrics", path=layout.PREREG)
    ((name, _),) = stated
    if results is None:
        return
    better = results["primary"]["better"]
    if name in METRICS and better != METRICS[name].better:
        raise PacketError(
            "E_STUDY", f"calls {better} values of {name} better, which they are not", path=layout.RESULTS
        )


def check_models(arms: Mapping[str, Mapping[str, Scalar]], locked: frozenset[str]) -> None:
    """Every arm runs the one model that is locked (E_ARMS): a replay lays out no other."""
    named = {str(config[key]) for config in arms.values() for key in MODEL_PATHS if config[key] is not None}
    if named != locked or len(named) != 1:
        raise PacketError(
            "E_ARMS",
            f"the arms name {len(named)} models and {len(locked)} are locked; one of each is needed",
            path=layout.MODELS_LOCK,
        )


def check_scope(
    documents: Documents, arms: Mapping[str, Mapping[str, Scalar]], extent: Mapping[str, tuple[int, int]]
) -> None:
    """The box of the claim is the one that arms, inputs and client span (E_STUDY).

    extent   `prompt_tokens` and `output_tokens` as (least, most) over all blocks' requests
    """
    scope, client = documents[layout.SCOPE], documents[layout.RUN_LOCK]["workload"]
    spanned: dict[str, set[Any]] = {
        key: {config[key] for config in arms.values()} for key in ("model", "device", "dtype")
    }
    for key, values in spanned.items():
        # What a factor varies has two values in the arms; then the box states one of them.
        if scope[key] not in values:
            raise PacketError("E_STUDY", f"its {key} is not that of the arms", path=layout.SCOPE)
    if scope["concurrency"] != client["concurrency"]:
        raise PacketError("E_STUDY", "its concurrency is not the client's", path=layout.SCOPE)
    for key, (least, most) in extent.items():
        if list(scope[key]) != [least, most]:
            raise PacketError(
                "E_STUDY",
                f"its {key} are {scope[key]}, the requests have {least} to {most}",
                path=layout.SCOPE,
            )
