"""Text to token ids and back, as the model's own tokenizer.json says, without torch or transformers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from intaglio.errors import ModelError, PromptEncodingError, TokenRangeError
from intaglio.intake.chat_template import ChatTemplate, Message
from intaglio.intake.token_bytes import TextStream, TokenBytes, added_tokens
from intaglio.models import catalogue


class Tokenizer:
    """The tokenizer of one model folder; it holds no state of requests.

    bos_token_id     the model's beginning-of-sequence token, or None
    eos_token_ids    the ids that end a text: generation_config.json, else config.json, else the tokenizer's
    vocab_size       how many ids the model can take (config.json; padding rows included)
    adds_bos         whether the model's own rule puts the BOS token before a prompt
    """

    def __init__(self, folder: Path) -> None:
        """Raises ModelError when a file of the tokenizer is missing or damaged."""
        document = catalogue.read_json(folder / catalogue.TOKENIZER)
        self._settings = _optional(folder / catalogue.TOKENIZER_CONFIG)
        self._config = catalogue.read_json(folder / catalogue.CONFIG)
        self._plain = _load(folder / catalogue.TOKENIZER)  # first: it checks the whole file's structure
        self._table = TokenBytes(document)
        self._missing = self._table.missing_bytes()
        self._path = folder / catalogue.TOKENIZER
        self._plain.encode_special_tokens = True
        self._special_texts = [row["content"] for row in added_tokens(document) if row.get("special")]
        template = catalogue.chat_template_text(folder)
        self._template = ChatTemplate(template) if template else None
        self.vocab_size: int = max(_int(self._config.get("vocab_size")) or 0, len(self._table))
        self.bos_token_id = self._id_of("bos_token", self._config.get("bos_token_id"))
        self.eos_token_ids = self._eos_ids(_optional(folder / catalogue.GENERATION))
        self.adds_bos = self._bos_rule()

    def encode(self, text: str, *, add_bos: bool | None = None, parse_special: bool = False) -> list[int]:
        """Token ids of `text`.

        add_bos        True puts the BOS token first, False does not, None follows the model's own rule
        parse_special  False: the text of a special token is plain text, so a prompt cannot inject control
                       tokens. True: it becomes the token, as Hugging Face tokenizers do by default.
                       (What a model adds to its vocabulary without calling it special is always parsed.)

        Raises PromptEncodingError for lone surrogates and for what is no string.
        """
        _check_text(text)
        tokenizer = self._parsing if parse_special else self._plain
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        if self.adds_bos if add_bos is None else add_bos:
            if self.bos_token_id is None:
                raise PromptEncodingError("this model has no BOS token; leave add_bos out", field="add_bos")
            return [self.bos_token_id, *ids]
        return ids

    def unencodable(self, text: str) -> str:
        """The distinct characters of `text` that the vocabulary lacks; `encode` leaves them out, as the
        model's own tokenizer does (SmolLM2: six control characters and two unassigned planes)."""
        if not self._missing:
            return ""
        return "".join(
            sorted(c for c in set(text) if not self._missing.isdisjoint(c.encode("utf-8", "replace")))
        )

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD. Raises TokenRangeError."""
        stream = self.stream(skip_special=skip_special)
        return stream.push_all(map(self._check_id, ids)) + stream.finish()

    def stream(self, prompt_ids: Sequence[int] = (), *, skip_special: bool = True) -> TextStream:
        """A decoder that takes ids one at a time. With the ids before them as `prompt_ids`, the text
        continues theirs: a leading space is kept. Without, it equals `decode` of the pushed ids."""
        before = any(token_id not in self._table.special_ids for token_id in prompt_ids)
        return TextStream(self._table, skip_special=skip_special, at_start=not before)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token (of a special one: its text). Raises TokenRangeError."""
        return self._table.of(self._check_id(token_id))

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a special (control) token, which decoding skips."""
        return token_id in self._table.special_ids

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it, or None."""
        found: int | None = self._plain.token_to_id(token)
        return found

    @property
    def known_tokens(self) -> int:
        """One more than the highest id that stands for anything; ids from there to vocab_size only pad."""
        return len(self._table)

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` is available."""
        return self._template is not None

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt text of the messages. Raises ModelError without a template, else PromptEncodingError."""
        if self._template is None:
            raise ModelError("this model has no chat template; give a plain prompt", field="model")
        return self._template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            bos_token=self._token_text("bos_token"),
            eos_token=self._token_text("eos_token"),
            tools=None,
        )

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of the messages as the model's template puts them, ready for an answer.

        Special tokens come from the template alone: their text inside a message stays plain text.
        """
        used = [text for text in self._special_texts if _occurs(text, messages)]
        if not used:
            text = self.render_chat(messages, add_generation_prompt=add_generation_prompt)
            return self.encode(text, add_bos=False, parse_special=True)
        marks = _marks(used, messages)
        text = self.render_chat(_substitute(messages, marks), add_generation_prompt=add_generation_prompt)
        _check_text(text)
        return self._encode_marked(text, {mark: special for special, mark in marks.items()})

    @functools.cached_property
    def _parsing(self) -> tokenizers.Tokenizer:
        # A second one, since the switch is a property of the tokenizer and requests come from many threads;
        # only chat prompts need it.
        return _load(self._path)

    def _encode_marked(self, text: str, originals: dict[str, str]) -> list[int]:
        """Encode `text` with special tokens parsed, then the marks in it as the plain text they stand for."""
        ids: list[int] = []
        start = 0
        encoding = self._parsing.encode(text, add_special_tokens=False)
        spans = [
            (token, span)
            for token, span in zip(encoding.ids, encoding.offsets)
            if token in self._table.special_ids
        ]
        for token, (left, right) in [*spans, (-1, (len(text), len(text)))]:
            piece = text[start:left]
            for mark, original in originals.items():
                piece = piece.replace(mark, original)
            ids += self._plain.encode(piece, add_special_tokens=False).ids if piece else []
            ids += [token] if token >= 0 else []
            start = right
        return ids

    def _check_id(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocab_size:
            raise TokenRangeError(
                f"token id {token_id} is outside 0..{self.vocab_size - 1}", field="prompt_token_ids"
            )
        return token_id

    def _bos_rule(self) -> bool:
        """tokenizer.json's post-processor alone decides, as in transformers 5 (it ignores `add_bos_token`)."""
        if self.bos_token_id is None:
            return False
        with_rule: list[int] = self._plain.encode("a", add_special_tokens=True).ids
        without: list[int] = self._plain.encode("a", add_special_tokens=False).ids
        if with_rule == without:
            return False
        if with_rule == [self.bos_token_id, *without]:
            return True
        raise ModelError(
            "tokenizer.json adds other tokens than BOS to a prompt; that is not supported", field="model"
        )

    def _token_text(self, name: str) -> str:
        value = self._settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else ""

    def _id_of(self, name: str, otherwise: object) -> int | None:
        text = self._token_text(name)
        return self.token_id(text) if text else _int(otherwise)

    def _eos_ids(self, generation: dict[str, Any]) -> tuple[int, ...]:
        for settings in (generation, self._config):
            value = settings.get("eos_token_id")
            ids = value if isinstance(value, list) else [value]
            known = tuple(sorted({number for number in map(_int, ids) if number is not None}))
            if known:
                return known
        end = self._id_of("eos_token", None)
        return () if end is None else (end,)


def _load(path: Path) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a damaged file
        raise ModelError(f"cannot read {path}: {error}; fetch the model again", field="model") from error
    # Files saved by a training script can carry its truncation and padding; a prompt must reach us whole.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _optional(path: Path) -> dict[str, Any]:
    return catalogue.read_json(path) if path.is_file() else {}


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise PromptEncodingError(f"the prompt must be text, not {type(text).__name__}", field="prompt")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptEncodingError(
            f"the prompt holds a lone surrogate at character {error.start}; send valid Unicode",
            field="prompt",
        ) from error


def _occurs(text: str, value: Any) -> bool:
    if isinstance(value, str):
        return text in value
    if isinstance(value, Mapping):
        return any(_occurs(text, item) for item in value.values())
    return isinstance(value, list | tuple) and any(_occurs(text, item) for item in value)


def _marks(specials: Sequence[str], messages: Sequence[Message]) -> dict[str, str]:
    """A private-use character per special text, none of which occurs in the messages."""
    free = (chr(code) for code in range(0xE000, 0xF900) if not _occurs(chr(code), messages))
    marks = dict(zip(specials, free))
    if len(marks) < len(specials):
        raise PromptEncodingError(
            "the messages use every private-use character; remove some", field="messages"
        )
    return marks


def _substitute(value: Any, marks: dict[str, str]) -> Any:
    if isinstance(value, str):
        for special in sorted(marks, key=len, reverse=True):
            value = value.replace(special, marks[special])
        return value
    if isinstance(value, Mapping):
        return {key: _substitute(item, marks) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_substitute(item, marks) for item in value]
    return value
