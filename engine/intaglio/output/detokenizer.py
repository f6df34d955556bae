"""Text out of token ids while they arrive: whole characters only, and nothing that belongs to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from intaglio.output.stop import StopStrings


class TextStream(Protocol):
    """A decoder that takes one token at a time and holds back the bytes of unfinished characters."""

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


class Codec(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def eos_token_ids(self) -> Sequence[int]: ...

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]: ...

    def unencodable(self, text: str) -> str: ...

    def stream(self, prompt_ids: Sequence[int]) -> TextStream: ...


class Detokenizer:
    """The text of one request, piece by piece. The joined pieces are the request's text.

    The pieces continue the prompt, so a leading space is kept. An unfinished character at the very end of the
    text becomes U+FFFD, as in decoding all the ids at once.
    """

    def __init__(self, codec: Codec, prompt_ids: Sequence[int], stops: Sequence[str]) -> None:
        self._stream = codec.stream(prompt_ids)
        self._stops = StopStrings(stops)
        self._over = False

    def push(self, token_id: int) -> tuple[str, bool]:
        """Add a token. Returns the text to show now, and whether a stop string ends the request here."""
        piece = self._stream.push(token_id)
        if not piece:
            return "", False
        shown, self._over = self._stops.push(piece)
        return shown, self._over

    def finish(self) -> str:
        """The request ends here: the text that was held back (nothing after a stop string)."""
        if self._over:
            return ""
        shown, self._over = self._stops.push(self._stream.finish())
        return shown if self._over else shown + self._stops.finish()
