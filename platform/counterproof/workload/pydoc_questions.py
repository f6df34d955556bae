"""Questions on passages of Python's own documentation topics: real text that every machine has.

The text differs between Python versions, which is why a workload is identified by its token ids.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import lru_cache

QUESTIONS = (
    "What does this say about {topic}?",
    "Which rule is stated here?",
    "Explain the main point in one sentence.",
    "What should a programmer remember from this?",
)
_MIN_WORDS = 6
_SPACE = re.compile(r"\s+")


@lru_cache(maxsize=1)
def passages() -> tuple[tuple[str, str], ...]:
    """`(topic, paragraph)` of every paragraph of running text, in topic order."""
    from pydoc_data.topics import topics

    result = []
    for topic in sorted(topics):
        for block in topics[topic].split("\n\n"):
            text = _SPACE.sub(" ", block).strip()
            if len(text) >= 120 and text[0].isupper():
                result.append((topic, text))
    return tuple(result)


def question_texts(
    encode: Callable[[str], list[int]], limit: int, seed: int, least: int = 0
) -> Iterator[tuple[int, ...]]:
    """Prompts of `least` to `limit` tokens: as many words of a passage as fit, and a question. Seeded order.

    A passage that is too short is followed by the next ones of the order.
    """
    order = list(passages())
    random.Random(f"pydoc/{seed}").shuffle(order)
    left = iter(enumerate(order))
    for number, (topic, text) in left:
        question = QUESTIONS[number % len(QUESTIONS)].format(topic=topic.replace("-", " "))
        words = text.split(" ")
        ids, whole = _fit(encode, words, question, limit)
        while ids is not None and whole and len(ids) < least:
            following = next(left, None)
            if following is None:
                return
            words += following[1][1].split(" ")
            ids, whole = _fit(encode, words, question, limit)
        if ids is not None and len(ids) >= least:
            yield ids


def _fit(
    encode: Callable[[str], list[int]], words: list[str], question: str, limit: int
) -> tuple[tuple[int, ...] | None, bool]:
    """The longest prompt within `limit` tokens by bisection over the words, None if even the shortest is over; and
    whether all words are in it."""
    most = min(len(words), limit)
    low, high, best = _MIN_WORDS, most, None
    while low <= high:
        middle = (low + high) // 2
        ids = encode(f"{' '.join(words[:middle])}\n\nQuestion: {question}\nAnswer:")
        if len(ids) <= limit:
            best, low = tuple(ids), middle + 1
        else:
            high = middle - 1
    return best, best is not None and high == len(words)
