"""Counter-based random numbers: Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).

A draw is a pure function of (seed, sample index, position, purpose). No state is kept, so a neighbour, a restart
or a replay cannot shift a stream.
"""

from __future__ import annotations

from enum import IntEnum

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10


class Purpose(IntEnum):
    """What a draw is for; draws for different purposes at one position are independent."""

    SAMPLE = 0
    ACCEPT = 1
    RESIDUAL = 2


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words from a 128-bit counter and a 64-bit key, both as 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low = _MULTIPLIERS[0] * c0
        high = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (high >> 32) ^ c1 ^ k0, high & _MASK, (low >> 32) ^ c3 ^ k1, low & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, sample_index: int, position: int, purpose: Purpose = Purpose.SAMPLE) -> float:
    """A float in [0, 1) with 53 random bits. Seeds count modulo 2^64, the others modulo 2^32."""
    counter = (position & _MASK, sample_index & _MASK, int(purpose), 0)
    words = philox4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))
    return ((words[0] << 21) | (words[1] >> 11)) * 2.0**-53
