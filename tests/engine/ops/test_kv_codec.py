"""KV formats: exact bytes, bounded errors for any numbers, and a token's codes that depend on that token alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from intaglio.compute.attention import attend_fast, attend_tiled
from intaglio.config import KV_FORMATS, parse_overrides
from intaglio.errors import ConfigError
from intaglio.state.kv_codec import SATURATION, SMALLEST_STEP, code_type, codec_of
from intaglio.state.kv_format import kv_format
from intaglio.state.kv_store import KVStore, PoolGroup

DENSE, QUANTISED = ("fp32", "bf16"), ("fp8", "int8", "int4")
CPU = torch.device("cpu")
HEADS, DIM = 2, 8
TOKENS = arrays.arrays(
    np.float32, (3, 2, HEADS, DIM), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)


def round_trip(name, fresh):
    codec = codec_of(code_type(name))
    return codec.decode(codec.encode(fresh), fresh.shape[2], fresh.shape[3])


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bound(name, wide):
    """Largest error of each number, by the codec's own formulas, in float64."""
    held = wide.double().clamp(-SATURATION, SATURATION)
    most = held.abs().amax(-1, keepdim=True)
    ulps = most * 2.0**-20 + 2.0**-149
    if name == "int8":
        return (most / 127).clamp_min(SMALLEST_STEP) / 2 + ulps
    if name == "fp8":
        return held.abs() / 16 + (most / 448).clamp_min(SMALLEST_STEP) / 1024 + ulps
    spread = held.amax(-1, keepdim=True) - held.amin(-1, keepdim=True) + most / 128
    return (spread / 15).clamp_min(SMALLEST_STEP) * (0.5 + 1 / 16) + most / 128 + ulps


@pytest.mark.parametrize("name", QUANTISED)
@given(values=TOKENS)
@example(values=np.zeros((3, 2, HEADS, DIM), np.float32))
@example(values=np.full((3, 2, HEADS, DIM), 1e-45, np.float32))
@example(values=np.full((3, 2, HEADS, DIM), -3.4e38, np.float32))
@example(values=np.geomspace(1e-30, 3e38, 96, dtype=np.float32).reshape(3, 2, HEADS, DIM))
def test_any_finite_number_comes_back_within_its_format_s_error(name, values):
    wide = torch.from_numpy(values)
    back = round_trip(name, wide)
    assert torch.isfinite(back).all()
    error = (back.double() - wide.double().clamp(-SATURATION, SATURATION)).abs()
    assert (error <= bound(name, wide)).all()


@pytest.mark.parametrize("name", [*DENSE, *QUANTISED])
def test_zeros_stay_zeros_and_large_numbers_saturate(name):
    zeros = torch.zeros(2, 2, HEADS, DIM).copysign(noise(2, 2, HEADS, DIM))
    assert torch.equal(round_trip(name, zeros).float().abs(), zeros.abs())
    large = noise(2, 2, HEADS, DIM).sign() * torch.finfo(torch.float32).max
    back = round_trip(name, large).float()
    if name in QUANTISED:
        assert torch.isfinite(back).all()
        assert torch.equal(back.sign(), large.sign())
        assert (back.abs() >= 0.98 * SATURATION).all()


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_spoils_its_own_head_and_no_other(name, bad):
    fresh = noise(3, 2, HEADS, DIM)
    clean = round_trip(name, fresh)
    fresh[1, 0, 1, 3] = bad
    back = round_trip(name, fresh)
    assert torch.isnan(back[1, 0, 1]).all()
    back[1, 0, 1] = clean[1, 0, 1]
    assert torch.equal(back, clean)


@pytest.mark.parametrize("name", QUANTISED)
def test_an_outlier_costs_its_own_token_and_head_alone(name):
    """What one scale for a whole tensor would cost: every number of the others."""
    fresh = noise(16, 2, HEADS, DIM)
    clean = round_trip(name, fresh)
    fresh[5, 1, 0, 2] = 1e4
    back = round_trip(name, fresh)
    others = torch.ones(16, 2, HEADS, dtype=torch.bool)
    others[5, 1, 0] = False
    assert torch.equal(back[others], clean[others])
    assert not torch.equal(back[5, 1, 0], clean[5, 1, 0])


@pytest.mark.parametrize("name", [*DENSE, *QUANTISED])
def test_codes_do_not_depend_on_who_writes_them_or_with_what(name):
    codec, fresh = codec_of(code_type(name)), noise(40, 2, 3, 20)
    together = codec.encode(fresh)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    assert torch.equal(codec.encode(fresh[order]), together[order])
    for i in range(40):
        assert torch.equal(codec.encode(fresh[i : i + 1])[0], together[i])


@pytest.mark.parametrize(
    ("name", "low", "high"), [("int8", 5e-3, 7e-3), ("fp8", 2e-2, 3e-2), ("int4", 7e-2, 0.11)]
)
def test_the_error_on_normal_numbers_is_what_the_formats_are_known_for(name, low, high):
    fresh = noise(2000, 2, 3, 64)
    error = (round_trip(name, fresh) - fresh).square().mean().sqrt() / fresh.square().mean().sqrt()
    assert low < error < high
    if name == "int8":
        whole = fresh.abs().max() / 127
        coarse = ((fresh / whole).round() * whole - fresh).square().mean().sqrt()
        assert coarse > 1.5 * error * fresh.square().mean().sqrt()


def test_every_e4m3_code_is_read_as_torch_reads_it():
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(torch.float8_e4m3fn).float()
    finite = torch.isfinite(values)
    assert finite.sum() == 254
    back = round_trip(
        "fp8",
        torch.stack((values[finite], torch.full((254,), 448.0)), -1).view(254, 1, 1, 2).expand(254, 2, 1, 2),
    )
    assert torch.equal(back[:, 0, 0, 0], values[finite])


@pytest.mark.parametrize(
    ("name", "per_token"),
    [("fp32", 46_080), ("bf16", 23_040), ("fp8", 12_240), ("int8", 12_240), ("int4", 6_480)],
)
def test_bytes_of_smollm2_s_shape_are_exact(name, per_token):
    """30 layers of 3 heads of 64: codes, and four bytes of parameters for each head's keys and its values."""
    group = PoolGroup(30, 3, 64, code_type(name))
    assert group.bytes_per_token == per_token
    store = KVStore(group, 3, 16, CPU)
    assert store.block_bytes == 16 * per_token
    assert store.nbytes == store.data.nbytes == 3 * 16 * per_token


@given(name=st.sampled_from([*DENSE, *QUANTISED]), heads=st.integers(1, 9), half=st.integers(1, 80))
def test_a_record_holds_exactly_the_bytes_that_are_planned(name, heads, half):
    codec = codec_of(code_type(name))
    record = codec.encode(torch.zeros(2, 2, heads, 2 * half))
    assert record.nbytes == 2 * codec.format.token_bytes(heads, 2 * half)
    assert record.shape[1:] == codec.token_shape(heads, 2 * half)
    assert codec.decode(record, heads, 2 * half).shape == (2, 2, heads, 2 * half)
    if codec.format.quantised:
        assert codec.format.token_bytes(heads, 2 * half) % 4 == 0


def exact(q, keys, values):
    """Attention of the last queries in float64."""
    groups = q.shape[1] // keys.shape[0]
    keys, values = (x.double().repeat_interleave(groups, 0) for x in (keys, values))
    scores = torch.einsum("qhd,hkd->hqk", q.double(), keys) / math.sqrt(q.shape[2])
    n, length = q.shape[0], keys.shape[1]
    hidden = torch.arange(length)[None] > torch.arange(length - n, length)[:, None]
    return torch.einsum("hqk,hkd->qhd", scores.masked_fill(hidden, -math.inf).softmax(-1), values).flatten(1)


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("attend", [attend_fast, attend_tiled])
@pytest.mark.parametrize("table", [(2, 3, 4), (5, 1, 6)], ids=["consecutive", "scattered"])
def test_attention_is_exact_over_what_is_stored_and_near_over_what_was_meant(name, attend, table):
    """NaN fills tails and free blocks. What quantisation itself costs is bounded beside the arithmetic's error."""
    store = KVStore(PoolGroup(2, 2, 16, code_type(name)), 8, 16, CPU)
    store.poison_free(range(8))
    fresh, queries = noise(41, 2, 2, 16), noise(41, 6, 16, seed=1)
    for start in (0, 7, 40):
        part = fresh[start : {0: 7, 7: 40, 40: 41}[start]]
        where = store.map_slots(store.slots(table, start, start + len(part)))
        for layer in (0, 1):
            store.write(layer, where, part)
    keys, values = store.read(1, store.run(table, 41))
    meant = round_trip(name, fresh)
    assert torch.equal(keys, meant[:, 0].transpose(0, 1))
    assert torch.equal(values, meant[:, 1].transpose(0, 1))
    for n in (1, 7, 41):
        out, _ = attend(queries[41 - n :], keys, values, 41 - n)
        stored = exact(queries[41 - n :], keys, values)
        assert (out.double() - stored).abs().max() <= 2.0**-18 * stored.abs().max()
        plain = exact(queries[41 - n :], fresh[:, 0].transpose(0, 1), fresh[:, 1].transpose(0, 1))
        distance = (out.double() - plain).square().mean().sqrt() / plain.square().mean().sqrt()
        assert 0 < distance < {"int8": 0.02, "fp8": 0.08, "int4": 0.3}[name]


@pytest.mark.parametrize("name", QUANTISED)
def test_poisoned_blocks_are_read_as_nan(name):
    store = KVStore(PoolGroup(1, 2, 16, code_type(name)), 2, 4, CPU)
    store.write(0, store.map_slots(range(8)), noise(8, 2, 2, 16))
    store.poison_free([1])
    keys, values = store.read(0, store.run((0, 1), 8))
    for part in (keys, values):
        assert torch.isfinite(part[:, :4]).all()
        assert torch.isnan(part[:, 4:]).all()


def test_formats_are_named_in_one_place_and_others_are_refused():
    assert [kv_format(name).name for name in KV_FORMATS[1:]] == list(KV_FORMATS[1:])
    assert [kv_format(name).quantised for name in KV_FORMATS[1:]] == [False, False, True, True, True]
    with pytest.raises(ConfigError, match="one of fp32, bf16, fp8, int8, int4") as caught:
        code_type("int2")
    assert caught.value.field == "kv_cache.format"
    with pytest.raises(ConfigError, match="int16"):
        codec_of(torch.int16)
    with pytest.raises(ConfigError, match=r"kv_cache\.format must be one of"):
        parse_overrides(["kv_cache.format=int2"])


@pytest.mark.parametrize("name", QUANTISED)
def test_a_format_without_a_cache_is_refused(name):
    with pytest.raises(ConfigError, match=r"kv_cache\.enabled is false") as caught:
        parse_overrides([f"kv_cache.format={name}", "kv_cache.enabled=false"])
    assert caught.value.field == "kv_cache.format"
