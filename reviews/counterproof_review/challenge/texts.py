"""Token sequences of every kind that a challenge knows: running text, one token over and over, noise, code, Unicode.

The sources are those that every machine has: Python's documentation and source text, and the passages that the
project ships. They differ between Python versions; both arms get the same tokens, which is what counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from counterproof.errors import InputError
from counterproof.workload import corpus

Encode = Callable[[str], list[int]]

NATURAL, REPEATED, RANDOM, CODE, UNICODE = "natural", "repeated", "random", "code", "unicode"
KINDS = (NATURAL, REPEATED, RANDOM, CODE, UNICODE)
# Scripts, combining marks, joined emoji and directions that break naive tokenizers; between Chinese passages.
_SCRIPTS = (
    "e\u0301 \u0928\u093f \ufdfd \U0001f469\u200d\U0001f469\u200d\U0001f467 \u202eabc\u202c \u0639\u0631\u0628\u064a "
    "\ud55c\uad6d\uc5b4 \u0437\u0434\u0440\u0430\u0432\u0435\u0439 \u00df \U00010348 "
)


class Texts:
    """Windows of tokens. `encode`: the model's tokenizer; `vocabulary`: how many ids the model knows."""

    def __init__(self, encode: Encode, vocabulary: int) -> None:
        self._encode = encode
        self._vocabulary = vocabulary
        self._known: dict[str, tuple[int, ...]] = {}
        self.beginning = tuple(corpus.beginning(encode))

    def window(self, kind: str, size: int, rng: np.random.Generator) -> tuple[int, ...]:
        """`size` tokens of a kind from a place that `rng` chooses. Raises InputError for an unknown kind."""
        if kind == RANDOM:
            return tuple(int(i) for i in rng.integers(0, self._vocabulary, size))
        if kind == REPEATED:
            return (int(rng.integers(0, self._vocabulary)),) * size
        source = self._source(kind)
        start = int(rng.integers(len(source)))
        whole = source[start:] + source * (1 + size // len(source))
        return whole[:size]

    def _source(self, kind: str) -> tuple[int, ...]:
        if kind not in self._known:
            self._known[kind] = tuple(self._tokens(kind))
        return self._known[kind]

    def _tokens(self, kind: str) -> list[int]:
        if kind == NATURAL:
            return corpus.tokens(self._encode, "en", "challenge")
        if kind == CODE:
            return corpus.inner(self._encode, Path(argparse.__file__).read_text(encoding="utf-8"))
        if kind == UNICODE:
            passages = [text for _, text in corpus.passages("zh")]
            return corpus.inner(self._encode, _SCRIPTS.join(passages))
        raise InputError(f"a challenge knows no prompts of kind '{kind}'; it knows {', '.join(KINDS)}")
