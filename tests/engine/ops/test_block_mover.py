"""Blocks leave the store and come back bit for bit, in an order that no other copy can disturb, or not at all."""

from __future__ import annotations

import pytest
import torch

from intaglio.intake.step_plan import BlockMove
from intaglio.state.block_mover import BlockMover, InlineStream, checksum
from intaglio.state.kv_store import KVStore, PoolGroup

BLOCK = 4


def make_store(dtype=torch.float32, blocks=6):
    store = KVStore(
        PoolGroup(layers=3, kv_heads=2, head_dim=8, dtype=dtype), blocks, BLOCK, torch.device("cpu")
    )
    draw = torch.Generator().manual_seed(5)
    raw = torch.randint(0, 100, store.data.shape, generator=draw)
    store.data.copy_(raw)
    for block in range(blocks):
        store.adopt(block, block + 1)
    return store


class Reordering(InlineStream):
    """Does nothing before it must, and then the copies begun since the last fence in reverse order."""

    def __init__(self):
        self.begun = []
        self.copies = 0

    def copy(self, target, source):
        self.begun.append((target, source))

    def fence(self):
        for target, source in reversed(self.begun):
            target.copy_(source)
            self.copies += 1
        self.begun = []

    wait = fence


def content(store, block):
    return store.data[:, block * BLOCK : (block + 1) * BLOCK].clone()


def moves(mover, *asked):
    mover.start(asked)
    return mover.finish()


def out(block, slot, generation=None):
    return BlockMove("copy_out", 0, block, block + 1 if generation is None else generation, slot)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stream", [InlineStream, Reordering])
def test_blocks_come_back_bit_for_bit_into_other_blocks(dtype, stream):
    store = make_store(dtype)
    mover = BlockMover([store], 4, stream=stream())
    before = [content(store, block) for block in (1, 4)]
    gone = moves(mover, out(1, 3), out(4, 0))
    assert [r.error for r in gone] == ["", ""]
    assert [r.nbytes for r in gone] == [store.block_bytes] * 2
    store.poison_free([1, 4])
    back = moves(
        mover,
        BlockMove("copy_in", 0, 5, 40, 3, gone[0].checksum),
        BlockMove("copy_in", 0, 0, 41, 0, gone[1].checksum),
    )
    assert [(r.error, r.nbytes, r.checksum) for r in back] == [
        ("", store.block_bytes, r.checksum) for r in gone
    ]
    assert torch.equal(content(store, 5), before[0])
    assert torch.equal(content(store, 0), before[1])
    assert store.holds(5, 40) and store.holds(0, 41)


@pytest.mark.parametrize("stream", [InlineStream, Reordering])
def test_a_block_read_out_and_filled_in_one_step_is_read_first(stream):
    store = make_store()
    mover = BlockMover([store], 4, stream=stream())
    (first,) = moves(mover, out(2, 0))
    old, other = content(store, 3), content(store, 2)
    # The fill stands first in the list, as no planner orders it: reading still comes first.
    fill = BlockMove("copy_in", 0, 3, 9, 0, first.checksum)
    results = moves(mover, fill, out(3, 1))
    assert [r.error for r in results] == ["", ""]
    assert torch.equal(content(store, 3), other)
    (back,) = moves(mover, BlockMove("copy_in", 0, 3, 10, 1, results[1].checksum))
    assert back.error == ""
    assert torch.equal(content(store, 3), old)


def test_the_stream_ran_the_copies_before_the_rows_could_write():
    store, stream = make_store(), Reordering()
    mover = BlockMover([store], 2, stream=stream)
    kept = content(store, 1)
    mover.start([out(1, 0)])
    assert stream.copies == 3  # one per layer, before start returns
    store.poison_free([1])  # a row of the same step writes the block
    (gone,) = mover.finish()
    (back,) = moves(mover, BlockMove("copy_in", 0, 5, 7, 0, gone.checksum))
    assert back.error == ""
    assert torch.equal(content(store, 5), kept)


@pytest.mark.parametrize("stale", [out(1, 0, generation=1), out(1, 0, generation=3)])
def test_a_block_of_another_generation_is_not_read(stale):
    mover = BlockMover([make_store()], 2)
    (result,) = moves(mover, stale)
    assert "generation" in result.error
    assert result.nbytes == 0


@pytest.mark.parametrize("fault", ["fail", "short", "late", "flip"])
@pytest.mark.parametrize("way", ["copy_out", "copy_in"])
def test_a_bad_copy_is_an_error_and_its_block_cannot_be_read(fault, way):
    store = make_store()
    mover = BlockMover([store], 3)
    faults = {(way, 0): fault}
    mover.fault = lambda move: faults.get((move.kind, move.slot), "")
    gone = moves(mover, out(1, 0), out(2, 1))
    assert gone[1].error == ""
    fills = [BlockMove("copy_in", 0, 4 + i, 50, i, gone[i].checksum) for i in range(2)]
    if way == "copy_out" and fault in ("fail", "late"):
        assert "copy" in gone[0].error
        return
    back = moves(mover, *fills)
    assert back[0].error and back[0].nbytes == 0
    assert not store.holds(4, 50)
    assert store.claim((4,), (50,), BLOCK, BLOCK + 1) != ""
    assert back[1].error == "" and store.holds(5, 50)  # its neighbour is whole


def test_a_copy_with_anothers_contents_is_refused():
    store = make_store()
    mover = BlockMover([store], 2)
    gone = moves(mover, out(1, 0), out(2, 1))
    assert gone[0].checksum != gone[1].checksum
    (back,) = moves(mover, BlockMove("copy_in", 0, 4, 50, 1, gone[0].checksum))
    assert "damaged" in back.error
    assert not store.holds(4, 50)


@pytest.mark.parametrize(
    "move",
    [
        BlockMove("copy_out", 0, 99, 1, 0),
        BlockMove("copy_out", 1, 0, 1, 0),
        BlockMove("copy_out", 0, 0, 1, 2),
        BlockMove("copy_in", 0, -1, 1, 0),
        BlockMove("copy_in", 0, 0, 1, -1),
        BlockMove("teleport", 0, 0, 1, 0),
    ],
    ids=str,
)
def test_a_move_that_names_nothing_is_its_own_error_alone(move):
    store = make_store()
    mover = BlockMover([store], 2)
    before = store.data.clone()
    results = moves(mover, move, out(3, 1))
    assert results[0].error and results[0].nbytes == 0
    assert results[1].error == ""
    assert torch.equal(store.data, before)


def test_files_hold_the_blocks_side_by_side(tmp_path):
    store = make_store()
    mover, path = BlockMover([store], 1), str(tmp_path / "kv0.bin")
    saved = moves(mover, *[BlockMove("save", 0, b, b + 1, i, 0, path) for i, b in enumerate((3, 1))])
    assert [r.error for r in saved] == ["", ""]
    assert (tmp_path / "kv0.bin").stat().st_size == 2 * store.block_bytes
    assert [r.checksum for r in saved] == [checksum(store.planes(b)) for b in (3, 1)]
    loaded = moves(mover, *[BlockMove("load", 0, 4 + i, 60, i, saved[i].checksum, path) for i in range(2)])
    assert [r.error for r in loaded] == ["", ""]
    assert torch.equal(content(store, 4), content(store, 3))
    assert torch.equal(content(store, 5), content(store, 1))


@pytest.mark.parametrize("harm", ["truncated", "flipped", "gone"])
def test_a_damaged_file_fills_nothing(tmp_path, harm):
    store = make_store()
    mover, path = BlockMover([store], 1), tmp_path / "kv0.bin"
    (saved,) = moves(mover, BlockMove("save", 0, 3, 4, 0, 0, str(path)))
    raw = bytearray(path.read_bytes())
    raw[17] ^= 4
    path.write_bytes(raw if harm == "flipped" else raw[:-1])
    if harm == "gone":
        path.unlink()
    (result,) = moves(mover, BlockMove("load", 0, 4, 60, 0, saved.checksum, str(path)))
    assert result.error
    assert not store.holds(4, 60)


def test_a_save_that_lost_something_is_not_kept(tmp_path):
    mover, path = BlockMover([make_store()], 1), tmp_path / "kv0.bin"
    mover.fault = lambda move: "short"
    (result,) = moves(mover, BlockMove("save", 0, 3, 4, 0, 0, str(path)))
    assert "lost" in result.error
    assert not path.exists()
