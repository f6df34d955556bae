"""Divergence, agreement and perplexity against hand-made arithmetic in float64."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from counterproof.workload.pydoc_questions import passages
from intaglio.errors import ConfigError, WorkerError
from intaglio.quality.measures import Positions
from intaglio.quality.text import held_out_text, read_text, windows


def softmax(row: np.ndarray) -> np.ndarray:
    wide = np.exp(row.astype(np.float64) - row.max())
    return np.asarray(wide / wide.sum())


def draw(seed: int, rows: int = 300, vocab: int = 37) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)


def test_every_measure_is_its_definition() -> None:
    reference = draw(1)
    candidate = (reference + 0.2 * draw(2)).astype(np.float32)
    targets = tuple(int(t) for t in np.random.default_rng(3).integers(0, 37, 300))
    positions = Positions()
    for start in range(0, 300, 64):  # taken in by parts of unequal size
        part = slice(start, start + 64)
        positions.add(reference[part], candidate[part], targets[part], (4, start))
    found = positions.summary()
    p = np.stack([softmax(row) for row in reference])
    q = np.stack([softmax(row) for row in candidate])
    kl = (p * (np.log(p) - np.log(q))).sum(-1)
    same = reference.argmax(-1) == candidate.argmax(-1)
    assert found.positions == 300
    assert found.kl_mean == pytest.approx(kl.mean(), rel=1e-9)
    assert found.kl_p99 == pytest.approx(np.sort(kl)[math.ceil(0.99 * 300) - 1], rel=1e-9)
    assert 0 < found.top1_agreement == same.mean() < 1
    assert found.max_dlogit == np.abs(reference.astype(np.float64) - candidate).max()
    nll = [-np.log(rows[np.arange(300), list(targets)]).mean() for rows in (p, q)]
    assert found.reference_perplexity == pytest.approx(math.exp(nll[0]), rel=1e-9)
    assert found.candidate_perplexity == pytest.approx(math.exp(nll[1]), rel=1e-9)
    assert found.perplexity_ratio == pytest.approx(math.exp(nll[1] - nll[0]), rel=1e-9)
    assert found.first_divergence == (4, int(np.flatnonzero(~same)[0]))


def test_the_same_logits_differ_in_nothing() -> None:
    positions = Positions()
    positions.add(draw(5), draw(5), tuple([0] * 300))
    found = positions.summary()
    assert (found.kl_mean, found.kl_p99, found.max_dlogit) == (0.0, 0.0, 0.0)
    assert (found.top1_agreement, found.perplexity_ratio, found.first_divergence) == (1.0, 1.0, None)


def test_divergence_is_judged_from_the_reference() -> None:
    """KL(r || c) weighs by r: a token that r holds for likely and c for impossible is the costly direction."""
    sharp = np.array([[10.0, 0.0]], dtype=np.float32)
    flat = np.array([[0.0, 0.0]], dtype=np.float32)
    one, other = Positions(), Positions()
    one.add(sharp, flat, (0,))
    other.add(flat, sharp, (0,))
    assert one.summary().kl_mean == pytest.approx(math.log(2), abs=1e-3)
    assert other.summary().kl_mean > 4


def test_an_absurd_perplexity_stays_a_number() -> None:
    positions = Positions()
    positions.add(np.zeros((1, 2), np.float32), np.array([[0.0, 3e38]], dtype=np.float32), (0,))
    assert math.isfinite(positions.summary().perplexity_ratio)


@pytest.mark.parametrize(
    ("candidate", "targets", "error"),
    [
        (draw(1, vocab=36), (0,) * 300, ConfigError),
        (draw(1), (0,) * 299, ConfigError),
        (np.full((300, 37), np.nan, np.float32), (0,) * 300, WorkerError),
    ],
)
def test_what_does_not_belong_together_is_refused(
    candidate: np.ndarray, targets: tuple[int, ...], error: type[Exception]
) -> None:
    positions = Positions()
    with pytest.raises(error):
        positions.add(draw(1), candidate, targets)
    with pytest.raises(ConfigError, match="longer text"):
        positions.summary()


def test_the_text_is_none_that_a_study_asks_about() -> None:
    text = held_out_text()
    asked = {passage for _, passage in passages()}
    parts = text.split("\n\n")
    assert len(parts) > 100
    assert len(text) > 10_000
    assert not asked & set(parts)
    assert not any(part in passage for part in parts for passage in asked if len(part) > 80)


def test_windows_cut_with_the_first_token_before_each() -> None:
    ids = list(range(10, 30))
    assert windows(ids, 8, 100) == [tuple(ids[:8]), tuple(ids[8:16]), tuple(ids[16:])]
    assert windows(ids, 8, 9) == [tuple(ids[:8])]  # a single token predicts nothing
    assert windows(ids, 8, 15, [1]) == [(1, *ids[:7]), (1, *ids[7:14]), (1, ids[14])]
    with pytest.raises(ConfigError, match="nothing to predict"):
        windows([7], 8, 100)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "latin").write_bytes(b"caf\xe9")
    (folder / "blank").write_text(" \n", encoding="utf-8")
    for name, words in (("absent", "cannot be read"), ("latin", "byte 3"), ("blank", "no text")):
        with pytest.raises(ConfigError, match=words) as caught:
            read_text(folder / name)
        assert caught.value.field == "text"
