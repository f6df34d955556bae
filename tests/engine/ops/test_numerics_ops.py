"""Linears, norms, activation and rotation of both numerics against float64, and the start-up self-test."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from intaglio.compute import selftest
from intaglio.compute.layers import Layout, Linear, RopeTable, inverse_frequencies
from intaglio.compute.numerics import FastNumerics, InvariantNumerics, choose_layouts
from intaglio.compute.packing import can_pack, pack
from intaglio.compute.spec import RopeSpec, read_spec
from intaglio.compute.weights import load_weights
from intaglio.errors import NumericsError

CPU = torch.device("cpu")
MODES = {"fast": FastNumerics(CPU, "test"), "invariant": InvariantNumerics(CPU, "test")}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def noise(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def held(weight, bias, layout):
    stored = {Layout.ROWS: lambda: weight, Layout.COLUMNS: lambda: weight.t().contiguous()}
    tensor = pack(weight) if layout is Layout.PACKED else stored[layout]()
    return Linear(tensor, bias, layout, weight.shape[1], weight.shape[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("rows", [1, 3, 16, 37])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_error_is_at_most_twice_that_of_the_library(mode, dtype, layout, rows, biased):
    kind = DTYPES[dtype]
    if layout is Layout.PACKED and not can_pack(kind, CPU):
        pytest.skip(f"this processor offers no packed {dtype} linear")
    weight, x = noise(45, 100, dtype=kind, seed=1), noise(rows, 100, dtype=kind, seed=2)
    bias = noise(45, dtype=kind, seed=3) if biased else None
    with torch.inference_mode():
        got = MODES[mode].linear(x, held(weight, bias, layout)).double()
    want = x.double() @ weight.double().t() + (bias.double() if biased else 0.0)
    theirs = (F.linear(x, weight, bias).double() - want).abs().max()
    # Adding the bias after rounding costs bf16 one more rounding of half a unit in the last place.
    ulp = want.abs().max() * (2.0**-8 if dtype == "bf16" else 2 * EPS)
    assert (got - want).abs().max() <= 2 * theirs + ulp


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_rms_norm_against_float64(mode, dtype, scale):
    x = noise(37, 96, dtype=DTYPES[dtype], seed=4) * scale
    weight = 1 + 0.1 * noise(96, seed=5)
    got = MODES[mode].rms_norm(x, weight, 1e-5)
    wide = x.double()
    want = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    theirs = (F.rms_norm(x, (96,), weight.to(x.dtype), 1e-5).double() - want).abs().max()
    assert got.dtype == x.dtype
    assert (got.double() - want).abs().max() <= 2 * theirs + 8 * EPS


def test_rms_norm_takes_a_weight_per_head():
    x, weight = noise(5, 3, 16, seed=6), 1 + noise(3, 16, seed=7)
    for ops in MODES.values():
        got = ops.rms_norm(x, weight, 1e-6)
        for head in range(3):
            torch.testing.assert_close(got[:, head], F.rms_norm(x[:, head], (16,), weight[head], 1e-6))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_against_float64(mode, dtype):
    x = noise(200, 2 * 172, dtype=DTYPES[dtype], seed=8) * 4
    got = MODES[mode].swiglu(x)
    gate, up = x[:, :172], x[:, 172:]
    want = gate.double() * torch.sigmoid(gate.double()) * up.double()
    theirs = ((F.silu(gate) * up).double() - want).abs().max()
    assert (got.double() - want).abs().max() <= 2 * theirs + 4 * EPS


def test_swiglu_rows_keep_their_bits_where_threads_would_split_a_row():
    """The library's vector and scalar code differ in the last bit, and where a thread's share ends inside a row
    the scalar code takes over: seen with 33 rows of 1,000 on two threads."""
    for threads, width, rows in ((2, 1000, 33), (3, 1000, 70), (3, 999, 200)):
        torch.set_num_threads(threads)
        x = noise(rows, 2 * width, seed=rows) * 4
        whole = MODES["invariant"].swiglu(x)
        for row in range(rows):
            assert torch.equal(MODES["invariant"].swiglu(x[row : row + 1])[0], whole[row])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_turns_each_pair_by_its_angle(mode, dtype, checkpoint):
    spec = read_spec(checkpoint())
    cos, sin = RopeTable(spec, CPU).tables(40)
    x = noise(40, 8, spec.head_dim, dtype=DTYPES[dtype], seed=9)
    got = x.clone()
    MODES[mode].rotate(got, cos[:40], sin[:40])
    half = spec.head_dim // 2
    freqs = spec.rope.theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(40, dtype=torch.float64)[:, None, None] * freqs
    first, second = x.double()[..., :half], x.double()[..., half:]
    want = torch.cat(
        (first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1
    )
    bound = 2.0**-8 * want.abs().max() if dtype == "bf16" else 2e-5
    assert (got.double() - want).abs().max() <= bound


def test_rope_table_grows_without_changing_what_it_held(checkpoint):
    table = RopeTable(read_spec(checkpoint()), CPU)
    before = table.tables(10)[0][:10].clone()
    assert table.tables(2000)[0].shape[0] >= 2000
    assert torch.equal(table.tables(10)[0][:10], before)


def test_llama3_scaling_keeps_high_frequencies_and_divides_low_ones():
    plain = inverse_frequencies(RopeSpec(500000.0), 128)
    scaled = inverse_frequencies(RopeSpec(500000.0, "llama3", 8.0, 1.0, 4.0, 8192), 128)
    assert torch.equal(scaled[:20], plain[:20])
    torch.testing.assert_close(scaled[-10:], plain[-10:] / 8)
    assert ((scaled <= plain) & (scaled >= plain / 8.000001)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_self_test_passes_for_invariant_numerics(dtype, family, checkpoint):
    folder = checkpoint(family, sliding_window=70) if family == "mistral" else checkpoint(family)
    spec, layouts = read_spec(folder), choose_layouts(DTYPES[dtype], CPU)
    weights = load_weights(folder, spec, DTYPES[dtype], CPU, layouts)
    assert selftest.require_invariance(MODES["invariant"], spec, weights) > 200


class Leaky(InvariantNumerics):
    """Invariant but for one operation, which looks at how many rows stand beside each row."""

    def __init__(self, operation: str) -> None:
        super().__init__(CPU, "leaky")
        self._leak = operation

    def _touch(self, operation, y):
        return y * (1 + 1e-6 * y.shape[0]) if operation == self._leak else y

    def linear(self, x, w):
        return self._touch("linear", super().linear(x, w))

    def rms_norm(self, x, weight, eps):
        return self._touch("rms_norm", super().rms_norm(x, weight, eps))

    def swiglu(self, gate_up):
        return self._touch("swiglu", super().swiglu(gate_up))

    def rotate(self, heads, cos, sin):
        super().rotate(heads, cos, sin)
        heads.copy_(self._touch("rotary", heads))

    def attend(self, queries, keys, values, context, window=None, need_lse=False):
        out, lse = super().attend(queries, keys, values, context, window, need_lse)
        return self._touch("attention", out), lse


@pytest.mark.parametrize("operation", ["linear", "rms_norm", "swiglu", "rotary", "attention"])
def test_self_test_refuses_a_leak_and_names_it(operation, checkpoint):
    folder = checkpoint()
    spec, layouts = read_spec(folder), choose_layouts(torch.float32, CPU)
    weights = load_weights(folder, spec, torch.float32, CPU, layouts)
    with pytest.raises(NumericsError, match=operation) as raised:
        selftest.require_invariance(Leaky(operation), spec, weights)
    assert raised.value.field == "numerics.mode"
