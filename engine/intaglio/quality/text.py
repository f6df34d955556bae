"""Held-out text: what is scored when the user brings none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from intaglio.errors import ConfigError

# Studies draw their prompts from paragraphs of at least 120 characters; shorter ones never occur in a workload.
SHORTEST, LONGEST = 60, 119
_SPACE = re.compile(r"\s+")


def held_out_text() -> str:
    """The short paragraphs of Python's documentation topics, in topic order: real text that every machine has.

    It differs between Python versions, so numbers are comparable inside one machine only.
    """
    from pydoc_data.topics import topics

    kept = []
    for topic in sorted(topics):
        for block in topics[topic].split("\n\n"):
            text = _SPACE.sub(" ", block).strip()
            if SHORTEST <= len(text) <= LONGEST and text[0].isupper() and text[-1] in ".:":
                kept.append(text)
    return "\n\n".join(kept)


def read_text(path: Path) -> str:
    """A file's text. Raises ConfigError for one that cannot be read, is empty or is not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); give a text file", field="text"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}; convert it", field="text") from None
    if not text.strip():
        raise ConfigError(f"{path} holds no text; give a file with some", field="text")
    return text


def windows(
    token_ids: Sequence[int], length: int, tokens: int, head: Sequence[int] = ()
) -> list[tuple[int, ...]]:
    """The first `tokens` ids cut into sequences of at most `length`, each with `head` (the token that begins every
    text of the model) put before it; what leaves nothing to predict is dropped. Raises ConfigError if all is."""
    used, own = token_ids[:tokens], max(1, length - len(head))
    cut = [(*head, *used[start : start + own]) for start in range(0, len(used), own)]
    kept = [sequence for sequence in cut if len(sequence) > 1]
    if not kept:
        raise ConfigError(
            f"{len(used)} tokens in windows of {length} leave nothing to predict; give more", field="tokens"
        )
    return kept
