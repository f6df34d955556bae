"""The decoder on native kernels: a step's rows become flat arrays, and one call runs a range of layers."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence

import torch

from intaglio.compute.layers import RopeTable
from intaglio.compute.native.library import KV_FORMAT_OF, Context
from intaglio.compute.native.model import NativeModel
from intaglio.compute.native.structs import IgKv, IgStep
from intaglio.compute.spec import ModelSpec
from intaglio.intake.step_plan import RowPlan
from intaglio.state.kv_store import KVStore

# A block so long that every position of an uncached row lies in the first one.
_ENDLESS = 1 << 40
# Rotary angles that are there from the start: the first requests need neither the time nor the library's code for them.
_FIRST_POSITIONS = 1024


class NativeDecoder:
    """Runs steps of one packed model in one context. Hidden states are fp32 [tokens, hidden]."""

    def __init__(self, spec: ModelSpec, model: NativeModel, context: Context, kv_dtype: torch.dtype) -> None:
        self.spec = spec
        self.model = model
        self.context = context
        self._kv_dtype = kv_dtype
        self._rope = RopeTable(spec, torch.device("cpu"))
        self._rope.tables(min(spec.max_positions, _FIRST_POSITIONS))
        self._addresses = _Addresses(kv_dtype)

    def run(
        self, rows: Sequence[RowPlan], store: KVStore | None, room: torch.Tensor | None = None
    ) -> torch.Tensor:
        """fp32 logits of the rows' chosen queries, in order [logit rows, vocab]: at the front of `room`, fp32
        [at least as many, vocab], if they fit there, else in memory of their own."""
        flat = _Flat(rows, store)
        count = len(flat.logits)
        logits = self._addresses.front(room, count) if room is not None else None
        if logits is None:
            logits = torch.empty(count, self.spec.vocab)
        self._compute(flat, self._step(flat, store, logits))
        return logits

    def forward(
        self,
        rows: Sequence[RowPlan],
        store: KVStore | None,
        hidden: torch.Tensor | None = None,
        first: int = 0,
        last: int | None = None,
        logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run layers [first, last) over the rows laid end to end; keys and values are stored on the way.

        Without `hidden` the tokens are embedded first, else it is changed in place. `logits` receives those of
        the rows' logit_rows. Returns the hidden states.
        """
        flat = _Flat(rows, store)
        if hidden is None:
            hidden = torch.empty(flat.token_count, self.spec.hidden)
        step = self._step(flat, store, logits)
        step.hidden, step.first = hidden.data_ptr(), first
        if last is not None:
            step.last = last
        if first > 0:
            step.tokens = None
        self._compute(flat, step)
        return hidden

    def _step(self, flat: _Flat, store: KVStore | None, logits: torch.Tensor | None) -> IgStep:
        """All layers for these rows, without their hidden states."""
        step = IgStep()
        step.tokens, step.positions = _address(flat.tokens), _address(flat.positions)
        step.rows, step.tables = _address(flat.rows), _address(flat.tables)
        step.token_count, step.row_count = flat.token_count, flat.row_count
        step.last = self.spec.layers
        if logits is not None and flat.logits:
            step.logit_rows, step.logits = _address(flat.logits), logits.data_ptr()
            step.logit_count = len(flat.logits)
        step.kv = self._addresses.kv(store)
        return step

    def _compute(self, flat: _Flat, step: IgStep) -> None:
        """Run a step, which points into `flat`."""
        step.cos, step.sin = self._addresses.angles(*self._rope.tables(flat.last_position + 1))
        self.context.forward(self.model.struct, step)


class _Addresses:
    """Where the tensors of the last step lie. They are the same in the next one as a rule, and asking torch again
    costs a step more than its own arithmetic: what the kernels stream has driven torch's code out of the caches."""

    def __init__(self, kv_dtype: torch.dtype) -> None:
        self._uncached = IgKv(None, 0, _ENDLESS, KV_FORMAT_OF[kv_dtype])
        self._kv = self._uncached
        # Not held: its memory goes when its owner lets it go.
        self._store: weakref.ref[KVStore] | None = None
        self._cos: torch.Tensor | None = None
        self._angles = (0, 0)
        self._room: torch.Tensor | None = None
        self._fronts: dict[int, torch.Tensor] = {}
        self._room_rows = 0

    def kv(self, store: KVStore | None) -> IgKv:
        if store is None:
            return self._uncached
        if self._store is None or self._store() is not store:
            data, form = store.data, KV_FORMAT_OF[store.group.dtype]
            self._kv = IgKv(data.data_ptr(), data.stride(0), store.block_tokens, form)
            self._store = weakref.ref(store)
        return self._kv

    def angles(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[int, int]:
        if cos is not self._cos:
            self._angles = (cos.data_ptr(), sin.data_ptr())
            self._cos = cos
        return self._angles

    def front(self, room: torch.Tensor, rows: int) -> torch.Tensor | None:
        """The first rows of `room`, or None where it has fewer."""
        if room is not self._room:
            self._room, self._room_rows, self._fronts = room, room.shape[0], {}
        if rows not in self._fronts and rows <= self._room_rows:
            self._fronts[rows] = room[:rows]
        return self._fronts.get(rows)


class _Flat:
    """A step's rows as arrays of whole numbers (see IgRow)."""

    def __init__(self, rows: Sequence[RowPlan], store: KVStore | None) -> None:
        self.tokens, self.positions, self.logits = array("i"), array("i"), array("i")
        self.tables = array("i") if store is not None else array("i", (0,))
        self.rows = array("q")
        self.last_position = 0
        for row in rows:
            start, count = len(self.tokens), len(row.tokens)
            self.tokens.extend(row.tokens)
            self.positions.extend(range(row.start, row.start + count))
            self.logits.extend(start + i for i in row.logit_rows)
            if store is None:
                self.rows.extend((start, count, 0, 0, start))
            else:
                self.rows.extend((start, count, row.context_len, len(self.tables), 0))
                self.tables.extend(row.block_tables[0])
            self.last_position = max(self.last_position, row.start + count - 1)
        self.token_count, self.row_count = len(self.tokens), len(rows)


def _address(numbers: array[int]) -> int:
    return numbers.buffer_info()[0]
