"""The leak lint: nothing in the public part may name an arm, a person, a machine, a place or a time.

The public part is written by allow-list, so nothing should ever be found. The lint is the second pair of
eyes: it reads names, keys and values as they will be shipped. It judges text, not configurations: whoever
reads two arm files can see in what they differ, and the blinding level says so.
"""

from __future__ import annotations

import getpass
import re
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from counterproof.record.schema import ARMS
from counterproof_review.packet import layout

_ARM_WORDS = (*ARMS, "control", "treatment", "salted", "reference arm")
_TIME_KEY = re.compile(r"(?:^|_)(?:utc|timestamp|datetime|date|created|modified|started|finished)(?:$|_)")
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("an absolute path", re.compile(r"(?:^|[\s\"'=:,(\[])/(?:[\w.+-]+/)+[\w.+-]*")),
    ("a home folder", re.compile(r"(?:^|[\s\"'=:])~[\w-]*/|file://")),
    ("a drive path", re.compile(r"(?:^|[^A-Za-z])[A-Za-z]:\\")),
    ("a time", re.compile(r"\b(?:19|20)\d\d-[01]\d-[0-3]\d(?:[T ]|\b)")),
    ("a clock time", re.compile(r"\b[0-2]\d:[0-5]\d:[0-5]\d\b")),
    ("a mail address", re.compile(r"[\w.+-]+@[\w-]+\.[A-Za-z]{2,}")),
    (
        "a secret",
        re.compile(r"\b(?:hf_|gh[pousr]_|sk-|xox[bp]-)[A-Za-z0-9]{16,}|\bAKIA[0-9A-Z]{16}\b|-----BEGIN"),
    ),
    ("an internet address", re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}:\d{2,5}\b")),
)
_GIT_SECONDS = 30.0
_PLAIN_BRANCHES = frozenset({"main", "master", "head", "origin", "develop", "trunk"})
_LEAST_WORD = 3  # shorter user or host names occur in ordinary words


@dataclass(frozen=True)
class Leak:
    """What was found where: `where` is a path and the place inside it, `what` says why it is a leak."""

    where: str
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.text[:60]!r}"


@dataclass(frozen=True)
class Lint:
    """`words`: further names that must not appear, e.g. the study's, its runs', the user's and the host's.

    `known`: words that belong to the packet's own vocabulary (packages, configuration paths) and so are no
    leak even where a user or host happens to be called so.
    """

    words: frozenset[str] = field(default_factory=frozenset)
    known: frozenset[str] = field(default_factory=frozenset)

    def names(self, paths: Iterable[str]) -> list[Leak]:
        """Leaks in the names of members."""
        return [leak for path in paths for leak in self._text(path, "name", path)]

    def document(self, path: str, value: object) -> list[Leak]:
        """Leaks in the keys and values of one public document."""
        return [
            leak for where, text, key in _texts(value, "") for leak in self._found(path, where, text, key)
        ]

    def _found(self, path: str, where: str, text: str, is_key: bool) -> Iterator[Leak]:
        if is_key and _TIME_KEY.search(text.lower()):
            yield Leak(f"{path} {where}", "a key that tells when", text)
        yield from self._text(path, where, text)

    def _text(self, path: str, where: str, text: str) -> Iterator[Leak]:
        place = f"{path} {where}".strip()
        lower = text.lower()
        for word in _ARM_WORDS:
            if _has_word(lower, word):
                yield Leak(place, f"names an arm ({word})", text)
        for word in self.words - self.known:
            if _has_word(lower, word.lower()):
                yield Leak(place, "names the study, a person or a machine", text)
        for what, pattern in _PATTERNS:
            if pattern.search(text):
                yield Leak(place, what, text)


def machine_words() -> frozenset[str]:
    """The user and host this process runs as, as far as they are words long enough to search for."""
    names = {socket.gethostname(), socket.gethostname().split(".")[0]}
    try:
        names.add(getpass.getuser())
    except (OSError, KeyError, ImportError):  # no entry for this user id: nothing to leak
        names.discard("")
    return frozenset(name for name in names if len(name) >= _LEAST_WORD)


def checkout_words(folder: Path) -> frozenset[str]:
    """Names of branches and tags of the checkout around `folder`: people name them after what they try."""
    command = ["git", "-C", str(folder), "for-each-ref", "--format=%(refname:lstrip=2)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    names = {part for line in done.stdout.splitlines() for part in (line, line.rsplit("/", 1)[-1])}
    return frozenset(n for n in names if len(n) >= _LEAST_WORD and n.lower() not in _PLAIN_BRANCHES)


def vocabulary(paths: Iterable[str]) -> frozenset[str]:
    """The single words in `paths` (configuration paths, package names)."""
    return frozenset(word for path in paths for word in re.split(r"[^a-z0-9]+", path.lower()) if word)


def is_public(path: str) -> bool:
    """Whether a member belongs to the part that must name nothing."""
    return not path.startswith((layout.RESULTS_FOLDER, layout.SEALED_FOLDER)) and path != layout.SIGNATURE


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", text) is not None


def _texts(value: object, where: str) -> Iterator[tuple[str, str, bool]]:
    if isinstance(value, str):
        yield where, value, False
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield where, str(key), True
            yield from _texts(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            if isinstance(item, str | list | tuple | dict):
                yield from _texts(item, f"{where}[{index}]")


def scan(lint: Lint, documents: Mapping[str, Any]) -> list[Leak]:
    """Every leak in `{path: parsed document}`; paths of the results part are passed over."""
    public = {path: value for path, value in documents.items() if is_public(path)}
    return lint.names(public) + [
        leak for path, value in public.items() for leak in lint.document(path, value)
    ]
