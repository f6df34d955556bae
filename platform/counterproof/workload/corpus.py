"""Real text that every machine has: Python's own documentation topics (English), the project's passages (Chinese).

The English text differs between Python versions, which is why a workload is identified by its token ids.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from functools import lru_cache

from counterproof.errors import InputError, SetupError
from counterproof.workload.pydoc_questions import passages as pydoc_passages
from intaglio.errors import ModelError
from intaglio.models.sources import data_root

Encode = Callable[[str], list[int]]

LANGUAGES = ("en", "zh")
CHINESE = "text/passages_zh.txt"
_QUESTIONS = {
    "en": (
        "What does this say about {topic}?",
        "Which rule is stated here?",
        "Explain the main point in one sentence.",
        "What should a reader remember from this?",
        "Name one consequence of what is said here.",
        "Which word matters most here, and why?",
    ),
    "zh": (
        "这段话关于{topic}说了什么？",
        "文中提到了哪一条规律？",
        "请用一句话概括主要意思。",
        "读者应该记住什么？",
        "请举出一个由此得出的结论。",
        "哪个词最关键？为什么？",
    ),
}
_FRAMES = {
    "en": "\n\nQuestion {number}: {question}\nAnswer:",
    "zh": "\n\n问题{number}：{question}\n回答：",
}
ROLES = {"en": ("User", "Assistant"), "zh": ("用户", "助手")}


def passages(language: str) -> tuple[tuple[str, str], ...]:
    """`(topic, paragraph)` of every paragraph. Raises InputError for a language that there is no text in."""
    if language == "en":
        return pydoc_passages()
    if language == "zh":
        return _chinese()
    raise InputError(
        f"workload.language '{language}' has no text", details=[f"there are: {', '.join(LANGUAGES)}"]
    )


def question(language: str, number: int, topic: str) -> str:
    """The `number`-th question about a topic, with its number in it, so that no two are equal."""
    return _FRAMES[language].format(number=number + 1, question=plain_question(language, number, topic))


def plain_question(language: str, number: int, topic: str) -> str:
    """The `number`-th question about a topic without a frame around it."""
    kinds = _QUESTIONS[language]
    return kinds[number % len(kinds)].format(topic=topic.replace("-", " "))


def beginning(encode: Encode) -> list[int]:
    """What the tokenizer puts before any text (a BOS token, or nothing)."""
    return list(encode(""))


def inner(encode: Encode, text: str) -> list[int]:
    """Token ids of a text that does not begin a prompt."""
    return list(encode(text))[len(beginning(encode)) :]


def tokens(encode: Encode, language: str, seed: str) -> list[int]:
    """The whole corpus as token ids without a beginning, paragraphs in seeded order."""
    order = [text for _, text in passages(language)]
    random.Random(f"corpus/{seed}").shuffle(order)
    return inner(encode, "\n\n".join(order))


def passage_questions(encode: Encode, language: str, limit: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Prompts of at most `limit` tokens: as much of a passage as fits, and a question. Every passage with every kind
    of question, in seeded order."""
    known = passages(language)
    pairs = [(passage, kind) for kind in range(len(_QUESTIONS[language])) for passage in range(len(known))]
    random.Random(f"passages/{seed}").shuffle(pairs)
    start = beginning(encode)
    for passage, kind in pairs:
        topic, text = known[passage]
        asked = inner(encode, question(language, kind, topic))
        room = limit - len(start) - len(asked)
        if room > 0:
            yield (*start, *inner(encode, text)[:room], *asked)


class Blocks:
    """Blocks of real text by id: the same id gives the same tokens, and two ids never give equal ones.

    Each begins with its id in brackets, which tells it from all others, and goes on with a window of the corpus.
    """

    def __init__(self, encode: Encode, language: str, seed: str, size: int) -> None:
        """`size`: tokens a block. Raises InputError where the id itself would not fit."""
        self._encode = encode
        self._seed = seed
        self._size = size
        self._corpus = tokens(encode, language, seed)
        self._known: dict[int, tuple[int, ...]] = {}

    def block(self, number: int) -> tuple[int, ...]:
        """The tokens of block `number`."""
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = self._make(f"[{number}] ")
        return found

    def window(self, name: str, size: int) -> tuple[int, ...]:
        """`size` tokens of the corpus from the place that `name` leads to; two names may lead to one place."""
        return self._window(name, [], size)

    def _make(self, label: str) -> tuple[int, ...]:
        head = inner(self._encode, label)
        if len(head) >= self._size:
            raise InputError(
                f"a block of {self._size} tokens has no room for its id {label.strip()} ({len(head)} tokens)",
                details=["raise workload.length_scale"],
            )
        return self._window(label, head, self._size)

    def _window(self, name: str, head: list[int], size: int) -> tuple[int, ...]:
        digest = hashlib.sha256(f"window/{self._seed}/{name}".encode()).digest()
        start = int.from_bytes(digest[:8], "big") % len(self._corpus)
        ids = list(head[:size])
        while len(ids) < size:
            ids += self._corpus[start : start + size - len(ids)]
            start = 0
        return tuple(ids)


def stream(encode: Encode, language: str, seed: str) -> Iterator[tuple[str, list[int]]]:
    """`(topic, tokens)` of the paragraphs in seeded order, endlessly; each round in another order."""
    known = passages(language)
    turn = 0
    while True:
        order = list(known)
        random.Random(f"stream/{seed}/{turn}").shuffle(order)
        for topic, text in order:
            yield topic, inner(encode, text)
        turn += 1


@lru_cache(maxsize=1)
def _chinese() -> tuple[tuple[str, str], ...]:
    try:
        path = data_root() / CHINESE
        lines = path.read_text(encoding="utf-8").splitlines()
    except (ModelError, OSError) as error:
        raise SetupError(f"the Chinese passages are not there: {error}") from error
    result = []
    for line in lines:
        if line and not line.startswith("#"):
            topic, _, text = line.partition("|")
            result.append((topic.strip(), text.strip()))
    return tuple(result)
