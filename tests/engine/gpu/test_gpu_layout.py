"""A step as whole numbers for the device: every query in one tile, slots by table, splits that no companion moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intaglio.compute.gpu.layout import Span, lay_out, pad_tables, span_tiles
from intaglio.compute.gpu.tiles import DECODE_ROWS, KEY_TILE, PREFILL_ROWS, SPLIT_KEYS, padded
from intaglio.errors import WorkerError
from intaglio.intake.step_plan import RowPlan

CPU = torch.device("cpu")
SPANS = [Span(0, 1, 5, (2,)), Span(1, 70, 30, range(7)), Span(71, 1, 1500, range(94)), Span(72, 5, 0, (9,))]


def row(name, count, start, table, logit_rows=()):
    tables = (tuple(table),) if table is not None else ()
    return RowPlan(name, tuple(range(10, 10 + count)), start, start, tables, (), tuple(logit_rows), "prefill")


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("groups", [1, 3, 16, 40])
def test_tiles_hold_every_query_once_with_its_position_and_the_rows_keys(uniform, groups):
    seen = {}
    for made in span_tiles(SPANS, groups, uniform):
        assert made.rows >= groups
        for number, token, position, count, length in made.tiles.tolist():
            assert 1 <= count <= max(1, made.rows // groups)
            span = SPANS[number]
            assert length == span.position + span.count
            for i in range(count):
                assert token + i not in seen
                seen[token + i] = (number, position + i)
        listed = dict(made.positions.tolist())
        assert listed == {t: p for t, (n, p) in seen.items() if t in listed}
    flat = [(n, s.position + i) for n, s in enumerate(SPANS) for i in range(s.count)]
    assert [seen[token] for token in range(len(flat))] == flat


def test_uniform_splits_are_those_of_the_position_alone():
    (together,) = span_tiles(SPANS, 3, True)
    assert (together.rows, together.split_keys) == (DECODE_ROWS, SPLIT_KEYS)
    assert together.splits == -(-1501 // SPLIT_KEYS)
    for span in SPANS:
        (alone,) = span_tiles([span], 3, True)
        assert (alone.rows, alone.split_keys) == (together.rows, together.split_keys)
        assert alone.splits == -(-(span.position + span.count) // SPLIT_KEYS)


def test_fast_mode_takes_larger_tiles_for_chunks_and_splits_what_stands_alone():
    chunks, alone = span_tiles(SPANS, 3, False)
    assert (chunks.rows, chunks.splits) == (PREFILL_ROWS, 0)
    assert alone.rows == DECODE_ROWS
    assert alone.splits > 1
    assert alone.split_keys % KEY_TILE == 0
    assert (alone.splits - 1) * alone.split_keys < 1501 <= alone.splits * alone.split_keys
    many = [Span(i, 1, 1500, range(94)) for i in range(300)]
    (crowded,) = span_tiles(many, 3, False)
    assert crowded.splits == 1


def test_a_step_is_laid_out_by_its_tables():
    rows = [row("a", 3, 6, (5, 2, 7), [2]), row("b", 1, 0, (1,), [0])]
    layout = lay_out(rows, (8, 4), 2, True, CPU)
    assert layout.tokens.tolist() == [10, 11, 12, 10]
    assert layout.positions.tolist() == [6, 7, 8, 0]
    assert layout.slots.tolist() == [2 * 4 + 2, 2 * 4 + 3, 7 * 4, 4]
    assert layout.logit_index.tolist() == [2, 3]
    assert layout.table.tolist() == [[5, 2, 7], [1, 0, 0]]
    assert (layout.block_tokens, layout.last_position) == (4, 8)
    assert {t.dtype for t in (layout.tokens, layout.slots, layout.table, layout.sets[0].tiles)} == {
        torch.int32
    }


def test_without_a_cache_the_table_names_the_steps_own_tokens():
    rows = [row("a", 3, 0, None), row("b", 2, 0, None)]
    layout = lay_out(rows, None, 2, False, CPU)
    assert layout.slots is None
    assert layout.block_tokens == 1
    assert layout.table.tolist() == [[0, 1, 2], [3, 4, 0]]


def test_parts_of_a_step_start_on_the_same_alignment():
    layout = lay_out([row("a", 3, 6, (5, 2, 7), [2])], (8, 4), 2, True, CPU)
    parts = (layout.tokens, layout.positions, layout.slots, layout.table, layout.sets[0].tiles)
    assert {(part.data_ptr() - layout.tokens.data_ptr()) % 64 for part in parts} == {0}


@pytest.mark.parametrize("table", [(5, 8), (5, -1)])
def test_a_slot_outside_the_store_is_refused_before_anything_is_written(table):
    with pytest.raises(WorkerError, match="outside the store of 8 blocks"):
        lay_out([row("a", 3, 4, table)], (8, 4), 2, True, CPU)


def test_tables_are_cut_to_the_blocks_in_use():
    table = pad_tables([Span(0, 1, 7, (3, 4, 5, 6)), Span(1, 1, 0, (9,))], 4)
    assert table.tolist() == [[3, 4], [9, 0]]
    assert table.dtype == np.int32


def test_padding_is_a_power_of_two_that_a_tensor_core_takes():
    assert [padded(n) for n in (1, 16, 17, 64, 80)] == [16, 16, 32, 64, 128]
