"""Philox4x32-10 against the known answers that its authors publish with Random123, and the draws built on it."""

from __future__ import annotations

import pytest
from scipy import stats

from intaglio.output.random import Purpose, philox4x32, uniform

ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("counter, key, words", KNOWN)
def test_known_answers(counter, key, words):
    assert philox4x32(counter, key) == words


def test_a_draw_uses_the_leading_words():
    words = KNOWN[0][2]
    assert uniform(0, 0, 0) == ((words[0] << 21) | (words[1] >> 11)) / 2**53


def test_every_part_of_the_key_changes_the_draw():
    base = uniform(1, 2, 3, Purpose.SAMPLE)
    others = [
        uniform(2, 2, 3),
        uniform(1 + (1 << 32), 2, 3),
        uniform(1, 3, 3),
        uniform(1, 2, 4),
        uniform(1, 2, 3, Purpose.ACCEPT),
        uniform(1, 2, 3, Purpose.RESIDUAL),
    ]
    assert base == uniform(1, 2, 3)
    assert len({base, *others}) == 7


def test_draws_are_uniform_over_positions_seeds_and_samples():
    streams = (
        [uniform(9, 0, position) for position in range(4000)],
        [uniform(seed, 0, 5) for seed in range(4000)],
        [uniform(9, index, 5) for index in range(4000)],
    )
    for draws in streams:
        assert 0.0 <= min(draws) <= max(draws) < 1.0
        assert stats.kstest(draws, "uniform").pvalue > 1e-3
