"""What a token is as bytes, and text out of tokens one at a time.

A model's text is the concatenation of its tokens' bytes, read as UTF-8. That makes decoding incremental by
construction: pushing tokens one by one gives the same text as decoding all of them at once.
"""

from __future__ import annotations

import codecs
import re
from array import array
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from intaglio.errors import ModelError

_MOST_TOKENS = 1 << 24
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Token id to bytes, for byte-level vocabularies (GPT-2's alphabet) and SentencePiece-like ones
    (a replacement character for the space, `<0xNN>` for single bytes).

    `strips_space`: the first token of a text loses one leading space, as SentencePiece models write one.
    Raises ModelError for a decoder of another kind.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        """`document`: the parsed tokenizer.json."""
        model = document.get("model")
        vocab = model.get("vocab", {}) if isinstance(model, Mapping) else None
        if not isinstance(vocab, Mapping):
            raise ModelError("tokenizer.json has a vocabulary of an unsupported kind", field="model")
        added = {row["id"]: row for row in added_tokens(document)}
        decoders = _decoder_steps(document.get("decoder"))
        kinds = [step.get("type") for step in decoders]
        self._byte_level = "ByteLevel" in kinds
        self._space = "" if self._byte_level else _space_character(decoders)
        self._byte_fallback = "ByteFallback" in kinds
        self.strips_space = any(_strips(step) for step in decoders)
        self._alphabet = byte_alphabet() if self._byte_level else {}
        tokens: dict[int, str] = {index: token for token, index in vocab.items()}
        tokens.update({index: row["content"] for index, row in added.items()})
        # One piece instead of a string each: those that survived would keep all memory of the parsed file.
        encoded = [tokens.get(index, "").encode("utf-8", "surrogatepass") for index in range(_end(tokens))]
        self._text, self._ends = b"".join(encoded), array("q", accumulate(map(len, encoded)))
        self._characters = frozenset(token for token in tokens.values() if len(token) == 1)
        self._added = frozenset(added)
        self.special_ids = frozenset(index for index, row in added.items() if row.get("special"))
        self._known: dict[int, bytes] = {}

    def __len__(self) -> int:
        """One more than the highest token id."""
        return len(self._ends)

    def of(self, token_id: int) -> bytes:
        """The token's bytes (of a special token: its text). A gap in the vocabulary has none."""
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._compute(token_id)
        return found

    def missing_bytes(self) -> frozenset[int]:
        """The bytes no token stands for: a byte-level vocabulary trained on a restricted alphabet loses them."""
        if not self._byte_level:
            return frozenset()
        return frozenset(
            byte for character, byte in self._alphabet.items() if character not in self._characters
        )

    def _compute(self, token_id: int) -> bytes:
        if not 0 <= token_id < len(self._ends):
            return b""
        start = self._ends[token_id - 1] if token_id else 0
        token = self._text[start : self._ends[token_id]].decode("utf-8", "surrogatepass")
        if self._byte_level:
            if all(character in self._alphabet for character in token):
                return bytes(self._alphabet[character] for character in token)
            return token.encode("utf-8")
        if token_id in self._added:
            return token.encode("utf-8")
        if self._byte_fallback and (match := _BYTE_FALLBACK.fullmatch(token)):
            return bytes([int(match.group(1), 16)])
        return token.replace(self._space, " ").encode("utf-8")


def _end(tokens: Mapping[int, str]) -> int:
    """One more than the highest id. Raises ModelError for one that no vocabulary reaches."""
    end = max(tokens, default=-1) + 1
    if end > _MOST_TOKENS:
        raise ModelError(f"tokenizer.json names token id {end - 1}; fetch the model again", field="model")
    return end


class TextStream:
    """Text out of token ids, one at a time. `push` returns what has become certain, `finish` the rest.

    The joined results equal the text of all ids at once: a character whose bytes are spread over several
    tokens is held back until it is complete, and bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, table: TokenBytes, *, skip_special: bool = True, at_start: bool = True) -> None:
        """`at_start`: the text begins here, so a SentencePiece model's leading space is taken off."""
        self._table = table
        self._skip = table.special_ids if skip_special else frozenset()
        self._strip = at_start and table.strips_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty when it ends inside a character or is skipped."""
        if token_id in self._skip:
            return ""
        data = self._table.of(token_id)
        if self._strip and data:
            data = data.removeprefix(b" ")
            self._strip = False
        return self._decoder.decode(data)

    def push_all(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete."""
        return "".join([self.push(token_id) for token_id in token_ids])

    @property
    def pending(self) -> bool:
        """Whether the last token ended inside a character."""
        return bool(self._decoder.getstate()[0])

    def finish(self) -> str:
        """The text of what is held back (U+FFFD for an unfinished character), or an empty string."""
        return self._decoder.decode(b"", final=True)


def added_tokens(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The `added_tokens` of a tokenizer.json, each with an `id` and its `content`. Raises ModelError."""
    rows = document.get("added_tokens", [])
    for row in rows if isinstance(rows, list) else [None]:
        if (
            not isinstance(row, Mapping)
            or type(row.get("id")) is not int
            or type(row.get("content")) is not str
        ):
            raise ModelError("tokenizer.json has added_tokens without id and content", field="model")
    return list(rows)


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character of each byte, reversed: printable Latin-1 stands for itself, the other
    bytes for U+0100 and up in order (Radford et al. 2019, byte-level BPE)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + rank): byte for rank, byte in enumerate(others)})
    return alphabet


def _decoder_steps(decoder: Any) -> list[dict[str, Any]]:
    if not isinstance(decoder, dict):
        raise ModelError(
            "tokenizer.json names no decoder; use a byte-level or SentencePiece one", field="model"
        )
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    unknown = {s.get("type") for s in steps} - {
        "ByteLevel",
        "Metaspace",
        "Replace",
        "ByteFallback",
        "Fuse",
        "Strip",
    }
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise ModelError(f"tokenizer.json has a decoder of an unsupported kind: {names}", field="model")
    return list(steps)


def _space_character(steps: list[dict[str, Any]]) -> str:
    for step in steps:
        if step["type"] == "Metaspace":
            return str(step.get("replacement", "▁"))
        if step["type"] == "Replace" and step.get("content") == " ":
            return str(step["pattern"]["String"])
    raise ModelError(
        "tokenizer.json's decoder does not say which character stands for a space", field="model"
    )


def _strips(step: dict[str, Any]) -> bool:
    if step["type"] == "Strip":
        return bool(step.get("content") == " " and step.get("start", 0) > 0)
    return bool(step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
