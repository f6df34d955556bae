"""The workloads' shapes, their cases by repeat, and the floors' arithmetic."""

from __future__ import annotations

import json
import struct

import pytest
from benchmarks.peers import floors, workloads
from benchmarks.peers.workloads import Case


@pytest.fixture(scope="module")
def data() -> dict:
    """Built from the documentation topics, with a stand-in tokenizer: one token a character."""
    return workloads.build(lambda text: [ord(letter) % 4096 for letter in text[:60_000]])


def test_built_workloads_have_the_shapes(data: dict) -> None:
    assert [len(prompt) for prompt in data["w1"]["prompts"]] == [512] * 8
    assert len(data["w2"]["prompts"]) == 16
    assert all(128 <= len(prompt) <= 512 for prompt in data["w2"]["prompts"])
    assert len({len(prompt) for prompt in data["w2"]["prompts"]}) > 4
    for group in data["w3"]["groups"]:
        assert len(group["prefix"]) == 1024
        assert len(group["prompts"]) == 16
        assert all(len(prompt) == 1056 for prompt in group["prompts"])
    assert [len(prompt) for prompt in data["w4"]["prompts"]] == [128] * 4
    assert [data[name]["new"] for name in ("w1", "w2", "w3", "w4")] == [128, 64, 16, 64]


def test_building_twice_gives_the_same_and_can_be_read_again(data: dict, tmp_path) -> None:
    again = workloads.build(lambda text: [ord(letter) % 4096 for letter in text[:60_000]])
    assert again == data
    path = tmp_path / "workloads.json"
    path.write_text(json.dumps(data))
    assert workloads.read(path) == data


@pytest.mark.parametrize("workload", workloads.NAMES)
def test_the_warm_up_is_never_what_is_measured(data: dict, workload: str) -> None:
    for repeat in range(9):
        case = workloads.case(data, workload, repeat)
        assert case.warm
        assert not [prompt for prompt in case.warm if prompt in case.batch]
        if workload == "w3":
            assert case.warm[0][:1024] != case.batch[0][:1024]


def test_repeats_take_other_prompts_but_w2_is_always_the_same(data: dict) -> None:
    assert workloads.case(data, "w1", 0).batch != workloads.case(data, "w1", 1).batch
    assert workloads.case(data, "w2", 0) == workloads.case(data, "w2", 1)
    assert workloads.case(data, "w1", 0).sha256() != workloads.case(data, "w1", 1).sha256()


def test_only_the_variant_is_without_a_cache(data: dict) -> None:
    assert workloads.case(data, "w4", 0).cache
    bare = workloads.case(data, "w4-nocache", 0)
    assert not bare.cache
    assert bare.sha256() == workloads.case(data, "w4", 0).sha256()


def test_titles_say_what_runs(data: dict) -> None:
    assert workloads.title(workloads.case(data, "w1", 0)) == "one prompt, 512 tokens, 128 new each"
    shared = workloads.title(workloads.case(data, "w3", 0))
    assert shared == "16 prompts together, 1056 tokens with a common prefix of 1024, 16 new each"
    assert workloads.title(workloads.case(data, "w4-nocache", 0)).endswith("no KV cache")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("w1"), "w1"),
        (lambda d: d["w2"].update(prompts=[]), "w2"),
        (lambda d: d["w3"]["groups"][1]["prompts"][0].__setitem__(0, 4097), "prefix"),
        (lambda d: d.pop("w3"), "prefix"),
    ],
)
def test_a_file_that_lacks_something_is_refused(data: dict, tmp_path, change, words: str) -> None:
    broken = json.loads(json.dumps(data))
    change(broken)
    path = tmp_path / "workloads.json"
    path.write_text(json.dumps(broken))
    with pytest.raises(ValueError, match=words):
        workloads.read(path)


def test_a_file_that_is_not_json_is_refused(tmp_path) -> None:
    path = tmp_path / "workloads.json"
    path.write_text("{")
    with pytest.raises(ValueError, match="cannot read"):
        workloads.read(path)


def test_the_shared_workloads_are_read(shared_data) -> None:
    path = shared_data / "bench_workloads.json"
    if not path.is_file():
        pytest.skip("no shared workloads")
    case = workloads.case(workloads.read(path), "w3", 0)
    assert case.shared == 1024
    assert len(case.batch) == 16


SHAPE = floors.Shape(body=1_000_000, head=500_000, layers=2, attention_width=64)
RATES = floors.Rates(read_gb_s=10.0, matmul_gflop_s={"fp32": 100.0, "bf16": 200.0})


def _case(batch: list[int], new: int, shared: int = 0, cache: bool = True) -> Case:
    return Case("w", [[1] * length for length in batch], new, [[2]], 1, shared, cache)


def test_the_decode_floor_reads_the_weights_once() -> None:
    found = floors.floor(_case([10], 5), SHAPE, "fp32", RATES)
    assert found["tpot_ms"] == pytest.approx(1_500_000 * 4 / 10e9 * 1e3)
    half = floors.floor(_case([10], 5), SHAPE, "bf16", RATES)
    assert half["tpot_ms"] == pytest.approx(found["tpot_ms"] / 2)
    packed = floors.floor(_case([10], 5), SHAPE, "q4_1", RATES, weight_bytes=1e6)
    assert packed["tpot_ms"] == pytest.approx(0.1)


def test_many_rows_are_bound_by_arithmetic() -> None:
    found = floors.floor(_case([10] * 100, 5), SHAPE, "fp32", RATES)
    assert found["tpot_ms"] == pytest.approx(100 * 2 * 1.5e6 / 100e9 * 1e3)


def test_the_prompt_floor_counts_linears_attention_and_one_row_of_the_head() -> None:
    found = floors.floor(_case([10], 1), SHAPE, "fp32", RATES)
    operations = 2 * 1e6 * 10 + 4 * (10 * 11 / 2) * 64 * 2 + 2 * 5e5
    assert found["ttft_ms"] == pytest.approx(operations / 100e9 * 1e3)
    assert found["wall_ms"] == pytest.approx(found["ttft_ms"])


def test_a_batch_has_no_floor_for_one_request() -> None:
    assert "ttft_ms" not in floors.floor(_case([10, 10], 1), SHAPE, "fp32", RATES)


def test_a_shared_prefix_is_paid_once_and_a_missing_cache_every_step() -> None:
    apart = floors.floor(_case([100] * 8, 1), SHAPE, "fp32", RATES)["wall_ms"]
    shared = floors.floor(_case([100] * 8, 1, shared=90), SHAPE, "fp32", RATES)["wall_ms"]
    assert apart / 8 < shared < apart / 3
    kept = floors.floor(_case([100], 10), SHAPE, "fp32", RATES)["wall_ms"]
    bare = floors.floor(_case([100], 10, cache=False), SHAPE, "fp32", RATES)
    assert bare["wall_ms"] > 2 * kept
    assert bare["tpot_ms"] > bare["ttft_ms"]  # the prefix grows


def test_the_best_rates_are_taken_one_by_one() -> None:
    other = floors.Rates(read_gb_s=12.0, matmul_gflop_s={"fp32": 90.0, "bf16": 210.0})
    assert floors.best([RATES, other]) == floors.Rates(12.0, {"fp32": 100.0, "bf16": 210.0})


def test_the_shape_is_read_from_headers_alone(tmp_path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "model.embed_tokens.weight": {"dtype": "F32", "shape": [100, 8], "data_offsets": [0, 3200]},
        "model.layers.0.mlp.up_proj.weight": {"dtype": "F32", "shape": [16, 8], "data_offsets": [3200, 3712]},
        "model.norm.weight": {"dtype": "F32", "shape": [8], "data_offsets": [3712, 3744]},
    }
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    config = {"num_attention_heads": 4, "hidden_size": 8, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert floors.read_shape(tmp_path) == floors.Shape(body=128, head=800, layers=1, attention_width=8)
