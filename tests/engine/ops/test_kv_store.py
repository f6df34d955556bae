"""Paged storage: nothing is written where it should not be, nothing is read that was not written."""

from __future__ import annotations

from array import array

import pytest
import torch

from intaglio.compute.attention import attend_fast, attend_tiled
from intaglio.errors import WorkerError
from intaglio.state.kv_store import KVStore, PoolGroup

GROUP = PoolGroup(layers=2, kv_heads=3, head_dim=8, dtype=torch.float32)
BLOCK = 4


@pytest.fixture
def store():
    made = KVStore(GROUP, blocks=8, block_tokens=BLOCK, device=torch.device("cpu"))
    made.data.fill_(float("nan"))
    return made


def tokens(count, seed=0):
    return torch.randn(count, 2, 3, 8, generator=torch.Generator().manual_seed(seed))


def write(store, table, start, kv):
    slots = store.map_slots(store.slots(table, start, start + kv.shape[0]))
    for layer in range(GROUP.layers):
        store.write(layer, slots, kv * (layer + 1))


@pytest.mark.parametrize("table", [(2, 3, 4), (5, 1, 6)], ids=["consecutive", "scattered"])
@pytest.mark.parametrize("chunks", [(11,), (4, 7), (1,) * 11])
def test_what_was_written_is_read_back_and_nothing_behind_it(store, table, chunks):
    kv, start = tokens(11), 0
    for size in chunks:
        write(store, table, start, kv[start : start + size])
        start += size
    for length in (1, 4, 10, 11):
        run = store.run(table, length)
        assert (run.keys is not None) == (table == (2, 3, 4) or length <= BLOCK)
        for layer in range(GROUP.layers):
            keys, values = store.read(layer, run)
            assert keys.shape == values.shape == (3, length, 8)
            assert torch.equal(keys, (kv[:length, 0] * (layer + 1)).transpose(0, 1))
            assert torch.equal(values, (kv[:length, 1] * (layer + 1)).transpose(0, 1))


def test_a_consecutive_run_is_a_view_and_copies_nothing(store):
    write(store, (2, 3), 0, tokens(6))
    keys, values = store.read(1, store.run((2, 3), 6))
    storage = store.data.untyped_storage().data_ptr()
    assert keys.untyped_storage().data_ptr() == values.untyped_storage().data_ptr() == storage


@pytest.mark.parametrize(
    "slots", [[-1, 9, 10, -1], [-1, -1, -1], [3, -1, 25, 12], [-1, 31], [0, -1]], ids=str
)
def test_a_padded_slot_touches_nothing_at_all(store, slots):
    store.data.copy_(torch.randn(store.data.shape, generator=torch.Generator().manual_seed(1)))
    before, kv = store.data.clone(), tokens(len(slots), seed=2)
    where = store.map_slots(slots)
    assert where.count == sum(slot != -1 for slot in slots)
    store.write(0, where, kv)
    expected = before.clone()
    for row, slot in enumerate(slots):
        if slot != -1:
            expected[0, slot] = kv[row]
    assert torch.equal(store.data, expected)


@pytest.mark.parametrize("slot", [-2, 32, 1000])
def test_a_slot_outside_the_store_is_refused_before_anything_is_written(store, slot):
    with pytest.raises(WorkerError, match="nothing was written"):
        store.map_slots([1, slot])


@pytest.mark.parametrize("attend", [attend_fast, attend_tiled])
@pytest.mark.parametrize("table", [(2, 3, 4), (5, 1, 6)], ids=["consecutive", "scattered"])
def test_nan_in_tails_and_free_blocks_reaches_no_result(store, attend, table):
    kv = tokens(9, seed=3)
    queries = torch.randn(9, 6, 8, generator=torch.Generator().manual_seed(4))
    store.poison_free([b for b in range(8) if b not in table])
    write(store, table, 0, kv)
    for n in (1, 4, 9):
        keys, values = store.read(0, store.run(table, 9))
        out, _ = attend(queries[9 - n :], keys, values, 9 - n)
        clean, _ = attend(queries[9 - n :], kv[:, 0].transpose(0, 1), kv[:, 1].transpose(0, 1), 9 - n)
        assert torch.isfinite(out).all()
        torch.testing.assert_close(out, clean, atol=1e-6, rtol=1e-6)


def test_poison_reaches_exactly_the_named_blocks(store):
    store.data.zero_()
    store.poison_free([0, 7])
    by_slot = torch.isnan(store.data).flatten(2).all(2).all(0)
    assert by_slot.tolist() == [slot // BLOCK in (0, 7) for slot in range(32)]
    assert not torch.isnan(store.data[:, BLOCK : 7 * BLOCK]).any()


def test_bytes_are_exact():
    smol = PoolGroup(layers=30, kv_heads=3, head_dim=64, dtype=torch.bfloat16)
    assert smol.bytes_per_token == 23_040
    assert PoolGroup(32, 8, 128, torch.bfloat16).bytes_per_token == 131_072
    assert PoolGroup(80, 8, 128, torch.bfloat16).bytes_per_token == 327_680
    assert PoolGroup(32, 32, 128, torch.bfloat16).bytes_per_token == 524_288
    store = KVStore(smol, blocks=3, block_tokens=16, device=torch.device("cpu"))
    assert store.block_bytes == 16 * 23_040
    assert store.nbytes == 3 * 16 * 23_040


def test_a_store_casts_to_its_own_format():
    group = PoolGroup(layers=1, kv_heads=3, head_dim=8, dtype=torch.bfloat16)
    store = KVStore(group, blocks=4, block_tokens=BLOCK, device=torch.device("cpu"))
    kv = tokens(5)
    for table in ((0, 1), (3, 1)):
        store.write(0, store.map_slots(store.slots(table, 0, 5)), kv)
        keys, _ = store.read(0, store.run(table, 5))
        assert keys.dtype == torch.bfloat16
        assert torch.equal(keys, kv[:, 0].bfloat16().transpose(0, 1))


def test_claims_follow_generations(store):
    assert store.claim((2, 3), (7, 7), 0, 6) == ""
    assert store.claim((2, 3), (7, 7), 6, 7) == ""
    # The block went to another owner: its old reader is told, the new owner starts at the block's beginning.
    assert store.claim((3,), (8,), 0, 2) == ""
    assert "stale" in store.claim((2, 3), (7, 7), 7, 8)
    assert "stale" in store.claim((5,), (1,), 2, 3)
    assert "cannot hold" in store.claim((2,), (7,), 0, 5)
    assert "cannot hold" in store.claim((2, 3), (7,), 0, 5)
    assert "outside" in store.claim((2, 8), (7, 7), 0, 5)
    assert "outside" in store.claim((-1, 2), (7, 7), 0, 5)


@pytest.mark.parametrize("kind", [list, lambda numbers: array("q", numbers)])
def test_long_tables_are_checked_together_and_each_bad_row_is_told(kind):
    many, blocks = KVStore(PoolGroup(1, 1, 2, torch.float32), 600, 4, torch.device("cpu")), 150
    tables = [array("i", range(150 * i, 150 * (i + 1))) for i in range(4)]
    rows = [(tables[i], kind([i + 1] * blocks), 0, blocks * 4) for i in range(4)]
    assert many.claim_all(rows) == [""] * 4
    again = [(table, own, end - 1, end) for table, own, _, end in rows]
    calls = []
    one_by_one = many.claim
    many.claim = lambda *row: calls.append(row) or one_by_one(*row)
    assert many.claim_all(again) == [""] * 4
    assert calls == []
    # A block goes to another owner between two steps, and a block within one: its old reader is told at once.
    many.adopt(300, 99)
    assert [text[:14] for text in many.claim_all(again)] == ["", "", "block 300 is s", ""]
    taker = (array("i", [7]), array("q", [50]), 0, 4)
    assert [text[:12] for text in many.claim_all([again[0], again[1], again[3], taker])] == [
        "block 7 is s",
        "",
        "",
        "",
    ]
    short = (tables[1][:149], again[1][1][:149], 599, 600)
    assert "cannot hold" in many.claim_all([again[1], again[3], short])[2]
    outside = (array("i", [600]) + tables[1][1:], again[1][1], 599, 600)
    assert "outside" in many.claim_all([again[3], outside])[1]


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 1), (5, 13), (0, 24), (7, 24), (23, 24), (3, 20)])
def test_slots_follow_any_block_table(store, start, end):
    size, table = store.block_tokens, [5, 0, 6, 2, 7, 1]
    wanted = [table[p // size] * size + p % size for p in range(24)]
    assert store.slots(table, start, end) == wanted[start:end]
    assert store.slots(array("i", table), start, end) == wanted[start:end]
    run = store.run(table, max(end, size + 1))
    assert run.index is not None
    assert run.index.tolist() == wanted[: max(end, size + 1)]
