"""Triton kernels of paged attention: online softmax (Milakov, Gimelshein 2018) over keys where their blocks lie.

Shared terms. A tile is up to ROWS / GROUPS consecutive queries of one row times the GROUPS heads of one kv head;
`tiles` holds per tile TILE_FIELDS int32: row, first token of the flat batch, its position, queries, keys of the row.
`kv` is one layer's store [slots, 2, KV_HEADS, DIM]; key p of a row has slot table[p // BLOCK] * BLOCK + p % BLOCK.
Sums are fp32; keys at or past the row's end are never loaded, so that a poisoned tail cannot reach a result.

Integers that change from step to step are not specialised on: one binary serves every batch, and with it one order
of additions.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE_FIELDS = 5
_RUNTIME = ["table_width", "split_keys", "tokens", "scale"]


@triton.jit
def tile_queries(
    queries,
    tiles,
    kv_head,
    GROUPS: tl.constexpr,
    Q_STRIDE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """(queries [ROWS, DIM_PAD], flat rows token * heads' offsets, positions, validity) of one tile."""
    token = tl.load(tiles + 1)
    position = tl.load(tiles + 2)
    count = tl.load(tiles + 3)
    row = tl.arange(0, ROWS)
    query = row // GROUPS
    head = kv_head * GROUPS + row % GROUPS
    valid = (query < count) & (query < ROWS // GROUPS)
    dim = tl.arange(0, DIM_PAD)
    where = queries + (token + query).to(tl.int64)[:, None] * Q_STRIDE + head[:, None] * DIM + dim[None, :]
    loaded = tl.load(where, mask=valid[:, None] & (dim[None, :] < DIM), other=0.0)
    return loaded, token + query, head, position + query, valid


@triton.jit
def key_range(tiles, KEYS: tl.constexpr, WINDOW: tl.constexpr):
    """Keys [first, stop) that any query of the tile sees; first is a multiple of KEYS."""
    position = tl.load(tiles + 2)
    stop = position + tl.load(tiles + 3)
    first = position * 0  # an integer of the device in either case
    if WINDOW > 0:
        first = tl.maximum(position - WINDOW + 1, 0) // KEYS * KEYS
    return first, stop


@triton.jit
def walk(
    q,
    table,
    kv,
    kv_head,
    at,
    first,
    stop,
    length,
    scale,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Online softmax over keys [first, stop): (maximum in powers of two, sum, weighted values), not yet divided.

    A key tile that a query does not see adds exact zeros to it and leaves its maximum alone.
    """
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, DIM_PAD), tl.float32)
    dim = tl.arange(0, DIM_PAD)
    if WIDE:
        q = q.to(tl.float32)
    for start in range(first, stop, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < length
        block = tl.load(table + key // BLOCK, mask=inside, other=0)
        slot = block.to(tl.int64) * BLOCK + key % BLOCK
        where = kv + slot[:, None] * (2 * KV_HEADS * DIM) + kv_head * DIM + dim[None, :]
        held = inside[:, None] & (dim[None, :] < DIM)
        keys = tl.load(where, mask=held, other=0.0).to(q.dtype)
        values = tl.load(where + KV_HEADS * DIM, mask=held, other=0.0).to(q.dtype)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
        seen = inside[None, :] & (key[None, :] <= at[:, None])
        if WINDOW > 0:
            seen = seen & (key[None, :] > at[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        # A query that has seen no key yet has maximum -inf; 0 in its place keeps the differences free of NaN.
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - finite[:, None])
        shrink = tl.exp2(top - finite)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(q.dtype), values, input_precision="ieee")
        top = higher
    return top, total, acc


@triton.jit(do_not_specialize=_RUNTIME)
def paged_prefill(
    queries,
    kv,
    tables,
    tiles,
    out,
    lse,
    table_width,
    scale,
    GROUPS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    Q_STRIDE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDE: tl.constexpr,
    FIELDS: tl.constexpr,
):
    """One tile's whole attention. Grid (tiles, kv heads); out [tokens, heads, DIM], lse [tokens, heads]."""
    kv_head = tl.program_id(1)
    tile = tiles + tl.program_id(0) * FIELDS
    q, token, head, at, valid = tile_queries(queries, tile, kv_head, GROUPS, Q_STRIDE, DIM, DIM_PAD, ROWS)
    first, stop = key_range(tile, KEYS, WINDOW)
    length = tl.load(tile + 4)
    table = tables + tl.load(tile).to(tl.int64) * table_width
    top, total, acc = walk(
        q,
        table,
        kv,
        kv_head,
        at,
        first,
        stop,
        length,
        scale,
        KV_HEADS,
        DIM,
        DIM_PAD,
        ROWS,
        BLOCK,
        KEYS,
        WINDOW,
        WIDE,
    )
    dim = tl.arange(0, DIM_PAD)
    flat = token.to(tl.int64) * (KV_HEADS * GROUPS) + head
    # Rows without a query have seen nothing; a divisor of 1 keeps them out of the exceptional cases.
    divisor = tl.where(total == 0.0, 1.0, total)
    merged = acc / divisor[:, None]
    keep = valid[:, None] & (dim[None, :] < DIM)
    tl.store(out + flat[:, None] * DIM + dim[None, :], merged.to(out.dtype.element_ty), mask=keep)
    tl.store(lse + flat, (top + tl.log2(divisor)) * 0.6931471805599453, mask=valid)


@triton.jit(do_not_specialize=_RUNTIME)
def paged_decode(
    queries,
    kv,
    tables,
    tiles,
    tops,
    totals,
    accs,
    table_width,
    split_keys,
    tokens,
    scale,
    GROUPS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    Q_STRIDE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDE: tl.constexpr,
    FIELDS: tl.constexpr,
):
    """One tile's attention to keys [split * split_keys, (split + 1) * split_keys). Grid (tiles, kv heads, splits).

    split_keys is a multiple of KEYS. Leaves the undivided parts in tops, totals [splits, tokens, heads] and accs
    [splits, tokens, heads, DIM], all fp32; splits that start behind the tile's last query are left unwritten.
    """
    kv_head, split = tl.program_id(1), tl.program_id(2)
    tile = tiles + tl.program_id(0) * FIELDS
    first, stop = key_range(tile, KEYS, WINDOW)
    begin = split * split_keys
    if begin < stop:
        q, token, head, at, valid = tile_queries(queries, tile, kv_head, GROUPS, Q_STRIDE, DIM, DIM_PAD, ROWS)
        length = tl.load(tile + 4)
        table = tables + tl.load(tile).to(tl.int64) * table_width
        first = tl.maximum(first, begin)
        stop = tl.minimum(stop, begin + split_keys)
        top, total, acc = walk(
            q,
            table,
            kv,
            kv_head,
            at,
            first,
            stop,
            length,
            scale,
            KV_HEADS,
            DIM,
            DIM_PAD,
            ROWS,
            BLOCK,
            KEYS,
            WINDOW,
            WIDE,
        )
        dim = tl.arange(0, DIM_PAD)
        flat = (split.to(tl.int64) * tokens + token) * (KV_HEADS * GROUPS) + head
        tl.store(tops + flat, top, mask=valid)
        tl.store(totals + flat, total, mask=valid)
        keep = valid[:, None] & (dim[None, :] < DIM)
        tl.store(accs + flat[:, None] * DIM + dim[None, :], acc, mask=keep)


@triton.jit(do_not_specialize=_RUNTIME)
def merge_splits(
    tops,
    totals,
    accs,
    positions,
    out,
    lse,
    split_keys,
    tokens,
    GROUPS: tl.constexpr,
    GROUPS_PAD: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
):
    """Fold the splits of one query's heads in their order. Grid (listed tokens, kv heads).

    `positions` holds per listed token its flat number and its position; splits past the position are not read.
    """
    token = tl.load(positions + 2 * tl.program_id(0))
    position = tl.load(positions + 2 * tl.program_id(0) + 1)
    group = tl.arange(0, GROUPS_PAD)
    head = tl.program_id(1) * GROUPS + group
    dim = tl.arange(0, DIM_PAD)
    present = group < GROUPS
    keep = present[:, None] & (dim[None, :] < DIM)
    top = tl.full((GROUPS_PAD,), float("-inf"), tl.float32)
    total = tl.zeros((GROUPS_PAD,), tl.float32)
    acc = tl.zeros((GROUPS_PAD, DIM_PAD), tl.float32)
    for split in range(position // split_keys + 1):
        flat = ((token * 0 + split).to(tl.int64) * tokens + token) * (KV_HEADS * GROUPS) + head
        # Lanes without a head keep a sum of 1, so that they divide like any other.
        part_top = tl.load(tops + flat, mask=present, other=0.0)
        part_total = tl.load(totals + flat, mask=present, other=1.0)
        part = tl.load(accs + flat[:, None] * DIM + dim[None, :], mask=keep, other=0.0)
        higher = tl.maximum(top, part_top)
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(top - finite)
        grow = tl.exp2(part_top - finite)
        total = total * shrink + part_total * grow
        acc = acc * shrink[:, None] + part * grow[:, None]
        top = higher
    flat = token.to(tl.int64) * (KV_HEADS * GROUPS) + head
    merged = acc / total[:, None]
    tl.store(out + flat[:, None] * DIM + dim[None, :], merged.to(out.dtype.element_ty), mask=keep)
    tl.store(lse + flat, (top + tl.log2(total)) * 0.6931471805599453, mask=present)
