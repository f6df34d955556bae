"""Why one prompt does not hit what another left in the prefix cache: the first difference, and what caused it.

The cache sees token ids after templating, cut into whole blocks, under a model and a tenant. A user sees text. This
module walks the way back: from the first token that differs to the text around it and to the reason.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from intaglio.state.block_key import CacheIdentity

AROUND = 40  # characters of text shown on each side of the difference
_CONTEXT_TOKENS = 24


class Pieces(Protocol):
    """A decoder that takes ids one at a time."""

    def push_all(self, token_ids: Iterable[int]) -> str: ...

    def finish(self) -> str: ...


class Decoder(Protocol):
    """What is needed of a tokenizer: ids to text with special tokens shown, and which ids are special."""

    def stream(self, prompt_ids: Sequence[int] = (), *, skip_special: bool = True) -> Pieces: ...

    def is_special(self, token_id: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the cache sees it, and as its user wrote it.

    ids     token ids after templating
    text    what the user wrote, None if that is not known (a prompt of ids)
    caches  whether its engine keeps a prefix cache
    """

    ids: tuple[int, ...]
    identity: CacheIdentity
    decoder: Decoder
    tenant: str = ""
    text: str | None = None
    caches: bool = True

    def piece(self, start: int, stop: int) -> str:
        """The text of tokens [start, stop), control tokens shown."""
        stream = self.decoder.stream(self.ids[:start], skip_special=False)
        return stream.push_all(self.ids[start:stop]) + stream.finish()

    @property
    def whole(self) -> str:
        """The text of all tokens."""
        return self.piece(0, len(self.ids))


@dataclass(frozen=True, slots=True)
class Cause:
    """kind: one of prefix cache off, tenant, model configuration, template, white space, special token, unicode form,
    tokenisation, text, block size tail, last token. detail: a sentence with the values."""

    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the second request finds of the first's blocks.

    common_tokens   leading tokens that are equal
    hit_tokens      of them, what is found: whole blocks, at least one token left to compute
    token           position of the first differing token, None if one prompt begins with all of the other
    before          text of the last common tokens; first, second: text from the difference on, of each prompt
    causes          why not more is hit, the weightiest first; empty if all that can be hit is
    """

    tokens: tuple[int, int]
    common_tokens: int
    hit_tokens: int
    token: int | None
    ids: tuple[int | None, int | None]
    before: str
    first: str
    second: str
    causes: tuple[Cause, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return asdict(self)


def explain(first: Asked, second: Asked) -> Explanation:
    """Why `second`, asked after `first`, does not hit more of its blocks."""
    common = _common(first.ids, second.ids)
    size = second.identity.block_tokens
    apart = [*_switched_off(first, second), *_tenants(first, second), *_configurations(first, second)]
    found = 0 if apart else min(common, len(second.ids) - 1) // size * size
    ended = common in (len(first.ids), len(second.ids))
    end = common + 2 * _CONTEXT_TOKENS
    first_text, second_text = first.piece(common, end), second.piece(common, end)
    causes = [*apart]
    if not ended:
        causes.append(_difference(first, second, common, first_text, second_text))
    if not apart and found < common:
        causes.append(_tail(first, second, common, found, size))
    return Explanation(
        tokens=(len(first.ids), len(second.ids)),
        common_tokens=common,
        hit_tokens=found,
        token=None if ended else common,
        ids=(_at(first.ids, common), _at(second.ids, common)),
        before=second.piece(max(0, common - _CONTEXT_TOKENS), common)[-AROUND:],
        first=first_text[:AROUND],
        second=second_text[:AROUND],
        causes=tuple(causes),
    )


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    for index, (one, other) in enumerate(zip(first, second)):
        if one != other:
            return index
    return min(len(first), len(second))


def _at(ids: Sequence[int], index: int) -> int | None:
    return ids[index] if index < len(ids) else None


def _switched_off(first: Asked, second: Asked) -> list[Cause]:
    kept = "" if first.caches else "the first leaves no blocks behind"
    sought = "" if second.caches else "the second looks none up"
    found = " and ".join(filter(None, (kept, sought)))
    return [Cause("prefix cache off", f"with prefix_cache.enabled=false {found}")] if found else []


def _tenants(first: Asked, second: Asked) -> list[Cause]:
    if first.tenant == second.tenant:
        return []
    detail = f"tenants never share blocks: '{first.tenant}' left them, '{second.tenant}' asks"
    return [Cause("tenant", detail)]


def _configurations(first: Asked, second: Asked) -> list[Cause]:
    names = [f.name for f in fields(CacheIdentity)]
    differing = [n for n in names if getattr(first.identity, n) != getattr(second.identity, n)]
    if not differing:
        return []
    values = (f"{n}: {getattr(first.identity, n)} and {getattr(second.identity, n)}" for n in differing)
    return [Cause("model configuration", "blocks hold other numbers under " + "; ".join(values))]


def _difference(first: Asked, second: Asked, at: int, first_text: str, second_text: str) -> Cause:
    """What kind of difference begins at token `at`."""
    where = f"token {at}: {first_text[:AROUND]!r} against {second_text[:AROUND]!r}"
    if first.text is not None and first.text == second.text:
        return Cause("template", f"the prompts are the same text and become other tokens at {where}")
    if any(asked.decoder.is_special(asked.ids[at]) for asked in (first, second)):
        return Cause(
            "special token", f"a control token stands where the other prompt has none or another, {where}"
        )
    if first.whole == second.whole:
        return Cause("tokenisation", f"the same text is cut into other tokens from {where}")
    if _squeezed(first_text) == _squeezed(second_text) or _white_space_first(first_text, second_text):
        return Cause("white space", f"only blanks, tabs or line ends differ first, {where}")
    if _same_form(first_text, second_text):
        return Cause("unicode form", f"the same characters are written with other code points, {where}")
    if first.text is not None and second.text is not None and _outside(first, second, at):
        return Cause("template", f"the difference lies outside of what the users wrote, {where}")
    return Cause("text", f"the prompts say something else from {where}")


def _tail(first: Asked, second: Asked, common: int, found: int, size: int) -> Cause:
    if found == (len(second.ids) - 1) // size * size and common == len(second.ids):
        detail = (
            f"one token is always computed, and with it its block of {size}: {common - found} of {common}"
        )
        return Cause("last token", detail)
    if common == len(first.ids) and len(first.ids) % size:
        detail = f"only whole blocks of {size} are kept: the first prompt's last {len(first.ids) % size} tokens are not"
        return Cause("block size tail", detail)
    return Cause(
        "block size tail", f"{common - found} of {common} common tokens do not fill a block of {size}"
    )


def _squeezed(text: str) -> str:
    return "".join(text.split())[: AROUND // 2]


def _white_space_first(first: str, second: str) -> bool:
    """Whether the first differing characters are white space in one text, and what follows agrees without it."""
    index = _first_difference(first, second)
    one, other = first[index : index + 1], second[index : index + 1]
    if not (one.isspace() or other.isspace()):
        return False
    rest = _squeezed(first[index:]), _squeezed(second[index:])
    length = min(map(len, rest))
    return length > 0 and rest[0][:length] == rest[1][:length]


def _first_difference(first: str, second: str) -> int:
    for index, (one, other) in enumerate(zip(first, second)):
        if one != other:
            return index
    return min(len(first), len(second))


def _same_form(first: str, second: str) -> bool:
    """Whether the texts agree for a while once they are brought into one Unicode normal form."""
    one, other = (unicodedata.normalize("NFC", text)[: AROUND // 2] for text in (first, second))
    length = min(len(one), len(other))
    return length > 0 and one[:length] == other[:length] and first[:length] != second[:length]


def _outside(first: Asked, second: Asked, at: int) -> bool:
    """Whether the difference comes before either user's text begins in its prompt."""
    return all(
        (begin := asked.whole.find(asked.text or "")) >= 0 and len(asked.piece(0, at + 1)) <= begin
        for asked in (first, second)
    )
