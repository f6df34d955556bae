"""Near misses of a prefix cache: what two prompts share and compute again, against a reference that compares all pairs."""

from __future__ import annotations

import random

import pytest

from counterproof.measure.prefix_miss import MOST_REQUESTS, near_misses
from counterproof.run.targets.explain_miss import IdDecoder, decoder_for, explain_pair


def reference(prompts: list[list[int]], size: int) -> dict[int, tuple[int, int]]:
    """Per request (tokens that can be hit, longest shared beginning plus end) over all earlier ones."""
    found = {}
    for number, ids in enumerate(prompts):
        best = shared = 0
        for other in prompts[:number]:
            least = min(len(ids), len(other))
            common = next((i for i in range(least) if ids[i] != other[i]), least)
            left = least - common
            end = next((i for i in range(left) if ids[-1 - i] != other[-1 - i]), left)
            best, shared = max(best, common), max(shared, common, end)
        found[number] = min(best, len(ids) - 1) // size * size, shared
    return found


@pytest.mark.parametrize("seed", range(20))
def test_hits_equal_those_of_comparing_every_pair(seed: int) -> None:
    draw = random.Random(seed)
    prompts = [[draw.randint(0, 2) for _ in range(draw.randint(1, 24))] for _ in range(30)]
    expected = reference(prompts, 4)
    found = {miss.request: miss for miss in near_misses(prompts, 4)}
    assert found
    for number, miss in found.items():
        hit, shared = expected[number]
        assert miss.hit_tokens == hit
        assert miss.earlier < number
        assert miss.common_tokens + miss.ending_tokens >= shared
        assert miss.lost_tokens == miss.common_tokens + miss.ending_tokens - hit > 0
    for number, (hit, shared) in expected.items():
        if number not in found:
            assert shared <= hit
    losses = [miss.lost_tokens for miss in near_misses(prompts, 4)]
    assert losses == sorted(losses, reverse=True)


def test_the_rest_of_a_block_the_last_token_and_an_early_difference_are_told() -> None:
    base = list(range(100, 140))
    tail, same, early = [*base[:20], *range(20)], list(base), [7, *base[1:]]
    found = {miss.request: miss for miss in near_misses([base, tail, same, early], 16)}
    assert (found[1].earlier, found[1].common_tokens, found[1].hit_tokens, found[1].lost_tokens) == (
        0,
        20,
        16,
        4,
    )
    assert (found[2].common_tokens, found[2].hit_tokens, found[2].lost_tokens) == (40, 32, 8)
    assert (found[3].common_tokens, found[3].ending_tokens, found[3].hit_tokens) == (0, 39, 0)
    assert near_misses([base, [1, 2, 3]], 16) == []
    assert near_misses([], 16) == []


@pytest.mark.parametrize(("prompts", "size"), [([[1]], 0), ([[1]] * (MOST_REQUESTS + 1), 16)])
def test_bad_input_is_refused(prompts: list[list[int]], size: int) -> None:
    with pytest.raises(ValueError, match="block size"):
        near_misses(prompts, size)


def test_the_explanation_is_the_engines_own_and_needs_the_records_tokenizer() -> None:
    effective = {"kv_cache.block_tokens": 16}
    found = explain_pair(range(40), [*range(20), 99], effective, IdDecoder())
    assert (found["common_tokens"], found["hit_tokens"], found["token"]) == (20, 16, 20)
    assert found["second"] == "[99]"
    assert [cause["kind"] for cause in found["causes"]] == ["text", "block size tail"]
    with pytest.raises(ValueError, match="block_tokens"):
        explain_pair([1], [2], {"kv_cache.block_tokens": True}, IdDecoder())
    for model, digest, reason in (
        ("", "", "does not name"),
        ("no/such-model", "0" * 64, "not on this machine"),
        ("tiny", "0" * 64, "not the one of the record"),
    ):
        decoder, why = decoder_for(model, digest)
        assert isinstance(decoder, IdDecoder)
        assert reason in why
