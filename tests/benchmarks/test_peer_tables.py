"""Medians, ratios, agreement and tables from answers made by hand."""

from __future__ import annotations

import pytest
from benchmarks.peers import report, table


def _answer(ttfts: list[float], totals: list[float], tokens: list[list[int]]) -> dict:
    requests = [
        {"ttft_ms": first, "total_ms": last, "tokens": row}
        for first, last, row in zip(ttfts, totals, tokens, strict=True)
    ]
    return {
        "batches": [{"wall_ms": max(totals), "requests": requests}],
        "peak_rss_mib": 100.0,
        "load_ms": 5.0,
        "versions": {"engine": "1.0"},
        "facts": {"mode": "plain"},
    }


def test_measures_of_one_request() -> None:
    found = table.measures(_answer([10.0], [50.0], [[1, 2, 3, 4, 5]]))
    assert found["ttft_ms"] == 10.0
    assert found["tpot_ms"] == 10.0  # four further tokens in 40 ms
    assert found["wall_ms"] == 50.0
    assert found["tokens_per_s"] == pytest.approx(100.0)


def test_measures_of_a_batch_take_the_median_first_token_and_the_mean_pace() -> None:
    found = table.measures(_answer([10.0, 20.0, 60.0], [30.0, 60.0, 70.0], [[1, 2], [1, 2], [1, 2]]))
    assert found["ttft_ms"] == 20.0
    assert found["tpot_ms"] == pytest.approx((20 + 40 + 10) / 3)
    assert found["tokens_per_s"] == pytest.approx(6 / 0.070)


def test_one_token_has_no_pace() -> None:
    assert "tpot_ms" not in table.measures(_answer([10.0], [10.0], [[1]]))


def test_agreement_counts_whole_requests_and_leading_tokens() -> None:
    found = table.agreement([[1, 2, 3], [1, 9, 3]], [[1, 2, 3], [1, 2, 3]])
    assert found == {"requests": 2, "requests_equal": 1, "tokens": 6, "leading_equal": 4}


@pytest.mark.parametrize("reference", [[[1, 2]], [[1, 2, 3], [4, 5, 6]]])
def test_agreement_refuses_a_reference_of_another_shape(reference: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="reference"):
        table.agreement([[1, 2, 3]], reference)


def _runs() -> table.Runs:
    ours = {at: _answer([10.0 * (at + 1)], [20.0 * (at + 1)], [[1, 2]]) for at in range(3)}
    theirs = {at: _answer([20.0 * (at + 1)], [80.0], [[1, 3]]) for at in range(3)}
    theirs[2] = {"failed": "exit status 1: out of memory"}
    return {"intaglio-fast": ours, "peer": theirs, "none": {0: {"unsupported": "no bf16"}}}


def test_summary_has_medians_failures_and_reasons() -> None:
    found = table.summarise(_runs(), {at: [[1, 2]] for at in range(3)})
    assert found["intaglio-fast"]["medians"]["ttft_ms"] == 20.0
    assert found["intaglio-fast"]["agreement"]["requests_equal"] == 3
    assert found["peer"]["medians"]["ttft_ms"] == 30.0
    assert found["peer"]["failures"] == ["exit status 1: out of memory"]
    assert found["peer"]["agreement"] == {"requests": 2, "requests_equal": 0, "tokens": 4, "leading_equal": 2}
    assert found["none"] == {"not_run": "no bf16"}


def test_without_reference_there_is_no_agreement() -> None:
    assert table.summarise(_runs(), {})["peer"]["agreement"] is None


def test_ratios_pair_the_runs_of_one_repeat_only() -> None:
    found = table.ratios(table.summarise(_runs(), {}), ["intaglio-fast"], ("ttft_ms", "wall_ms"))
    assert set(found) == {"peer"}
    assert found["peer"]["intaglio-fast"]["ttft_ms"] == {"median": 0.5, "low": 0.5, "high": 0.5}
    assert found["peer"]["intaglio-fast"]["wall_ms"] == {"median": 0.375, "low": 0.25, "high": 0.5}


def _document() -> dict:
    summary = table.summarise(_runs(), {0: [[1, 2]]})
    own = ["intaglio-fast"]
    case = {
        "workload": "w1",
        "dtype": "bf16",
        "title": "one prompt",
        "contestants": summary,
        "own": own,
        "ratio_metrics": list(table.RATIOS["w1"]),
        "ratios": table.ratios(summary, own, table.RATIOS["w1"]),
        "floor": {"ttft_ms": 1.25, "tpot_ms": 0.5, "wall_ms": 3.0},
        "rates": {"memory read GB/s": 32.0},
    }
    return {
        "utc": "2030-01-01T00:00:00+00:00",
        "machine": {"usable cores": "2"},
        "code": {"commit": "abc"},
        "model": "tiny",
        "threads": 2,
        "wait_policy": "active",
        "repeats": 3,
        "load_average": {"median": 1.0, "most": 2.0},
        "titles": {"intaglio-fast": "intaglio fast", "peer": "Peer", "none": "None"},
        "cases": [case],
    }


def test_markdown_shows_numbers_ratios_floor_and_reasons() -> None:
    text = report.markdown(_document())
    assert "| intaglio fast | 20.0 | 20.00 |" in text
    assert "1 of 1 requests, 100% before a difference" in text
    assert "| None |  |  |  |  |  |  | no bf16 | 0 |" in text
    assert "2 (1 failed)" in text
    assert "| *floor* | 1.2 | 0.50 | 3 |" in text
    assert "| Peer | 0.50 | " in text
    assert "0.38 (0.25-0.50)" in text
    assert "memory read GB/s 32.0" in text
    assert "- Peer: engine 1.0; mode: plain" in text
    assert "- usable cores: 2" in text


def test_every_row_of_a_table_has_the_same_columns() -> None:
    blocks = report.markdown(_document()).split("\n\n")
    tables = [block.splitlines() for block in blocks if block.startswith("|")]
    assert len(tables) == 2
    for rows in tables:
        assert len({row.count("|") for row in rows}) == 1


def test_results_are_written_as_both_and_only_inside_the_folder(tmp_path) -> None:
    report.write(tmp_path, "one", _document())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.json", "one.md"]
    with pytest.raises(ValueError, match="file name"):
        report.write(tmp_path, "../one", _document())
