"""Medians, ratios and floors of one case, from its cells; pure functions over plain values."""

from __future__ import annotations

import statistics
from typing import Any

# (key, title, digits, whether smaller is better)
METRICS = (
    ("ttft_ms", "TTFT ms", 1, True),
    ("tpot_ms", "TPOT ms", 2, True),
    ("wall_ms", "all ms", 0, True),
    ("tokens_per_s", "tokens/s", 1, False),
    ("peak_rss_mib", "peak MiB", 0, True),
    ("load_ms", "load ms", 0, True),
)
RATIOS = {"w1": ("ttft_ms", "tpot_ms", "wall_ms", "peak_rss_mib")}
RATIOS |= {"w4": RATIOS["w1"], "w4-nocache": ("ttft_ms", "tpot_ms", "wall_ms", "peak_rss_mib")}
RATIOS |= {"w2": ("ttft_ms", "wall_ms", "tokens_per_s", "peak_rss_mib")}
RATIOS |= {"w3": RATIOS["w2"]}
Runs = dict[str, dict[int, dict[str, Any]]]  # contestant -> repeat -> answer


def measures(answer: dict[str, Any]) -> dict[str, float]:
    """One run's metrics. ttft_ms is the median over the batch's requests; tpot_ms the mean over requests of
    (last - first token) / (tokens - 1); wall_ms from submission to the last token of all."""
    batch = answer["batches"][0]
    requests = batch["requests"]
    count = sum(len(request["tokens"]) for request in requests)
    paces = [
        (request["total_ms"] - request["ttft_ms"]) / (len(request["tokens"]) - 1)
        for request in requests
        if len(request["tokens"]) > 1
    ]
    found = {
        "ttft_ms": statistics.median(request["ttft_ms"] for request in requests),
        "wall_ms": batch["wall_ms"],
        "tokens_per_s": count / batch["wall_ms"] * 1e3,
        "peak_rss_mib": answer["peak_rss_mib"],
        "load_ms": answer["load_ms"],
    }
    return found | ({"tpot_ms": statistics.mean(paces)} if paces else {})


def agreement(tokens: list[list[int]], reference: list[list[int]]) -> dict[str, int]:
    """How far requests follow the reference: whole requests equal, and tokens before the first difference."""
    if [len(row) for row in tokens] != [len(row) for row in reference]:
        raise ValueError("the reference has other requests or lengths")
    leading = [
        next((at for at, (one, other) in enumerate(zip(row, wanted, strict=True)) if one != other), len(row))
        for row, wanted in zip(tokens, reference, strict=True)
    ]
    whole = sum(count == len(row) for count, row in zip(leading, tokens, strict=True))
    return {
        "requests": len(tokens),
        "requests_equal": whole,
        "tokens": sum(map(len, tokens)),
        "leading_equal": sum(leading),
    }


def summarise(runs: Runs, references: dict[int, list[list[int]]]) -> dict[str, Any]:
    """By contestant: medians over repeats, each repeat's values, agreement with the reference, or why it has none."""
    summary: dict[str, Any] = {}
    for name, answers in runs.items():
        done = {repeat: answer for repeat, answer in answers.items() if "batches" in answer}
        if not done:
            last = list(answers.values())[-1] if answers else {"failed": "not run yet"}
            summary[name] = {"not_run": last.get("unsupported") or last.get("failed")}
            continue
        by_repeat = {repeat: measures(answer) for repeat, answer in done.items()}
        keys = list(next(iter(by_repeat.values())))
        first = next(iter(done.values()))
        summary[name] = {
            "medians": {key: statistics.median(row[key] for row in by_repeat.values()) for key in keys},
            "repeats": by_repeat,
            "agreement": _agreements(done, references),
            "versions": first["versions"],
            "facts": first["facts"],
            "failures": [answer["failed"] for answer in answers.values() if "failed" in answer],
        }
    return summary


def _agreements(
    done: dict[int, dict[str, Any]], references: dict[int, list[list[int]]]
) -> dict[str, int] | None:
    total: dict[str, int] = {}
    for repeat, answer in done.items():
        if repeat not in references:
            continue
        tokens = [request["tokens"] for request in answer["batches"][0]["requests"]]
        for key, value in agreement(tokens, references[repeat]).items():
            total[key] = total.get(key, 0) + value
    return total or None


def ratios(summary: dict[str, Any], own: list[str], keys: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """own/peer for each peer, own contestant and metric: the median of the repeats' ratios, and their range.

    A ratio pairs the two runs of one repeat, which stood next to each other in time.
    """
    found: dict[str, dict[str, Any]] = {}
    for peer, theirs in summary.items():
        if peer in own or "repeats" not in theirs:
            continue
        for name in own:
            ours = summary.get(name, {}).get("repeats", {})
            for key in keys:
                pairs = [
                    ours[repeat][key] / theirs["repeats"][repeat][key]
                    for repeat in ours
                    if repeat in theirs["repeats"]
                    and key in ours[repeat]
                    and key in theirs["repeats"][repeat]
                ]
                if pairs:
                    cell = {"median": statistics.median(pairs), "low": min(pairs), "high": max(pairs)}
                    found.setdefault(peer, {}).setdefault(name, {})[key] = cell
    return found


def markdown(case: dict[str, Any], titles: dict[str, str]) -> str:
    """The case's tables: medians with the floor, then ratios. `case` as comparison.py writes it."""
    lines = [
        f"### {case['workload']} {case['dtype']}: {case['title']}",
        "",
        "| engine | "
        + " | ".join(title for _, title, _, _ in METRICS)
        + " | tokens as fp32 reference | runs |",
        "|---|" + "---:|" * (len(METRICS) + 2),
    ]
    for name, entry in case["contestants"].items():
        if "not_run" in entry:
            lines.append(
                f"| {titles[name]} | " + " | ".join("" for _ in METRICS) + f" | {entry['not_run']} | 0 |"
            )
            continue
        cells = [_number(entry["medians"].get(key), digits) for key, _, digits, _ in METRICS]
        runs = str(len(entry["repeats"])) + (
            f" ({len(entry['failures'])} failed)" if entry["failures"] else ""
        )
        lines.append(
            f"| {titles[name]} | " + " | ".join(cells) + f" | {_agreed(entry['agreement'])} | {runs} |"
        )
    if case.get("floor"):
        cells = [_number(case["floor"].get(key), digits) for key, _, digits, _ in METRICS]
        lines.append("| *floor* | " + " | ".join(cells) + " | | |")
    return "\n".join([*lines, "", *_ratio_lines(case, titles)])


def _ratio_lines(case: dict[str, Any], titles: dict[str, str]) -> list[str]:
    if not case["ratios"]:
        return []
    names = {key: (title.removesuffix(" ms").removesuffix(" MiB"), small) for key, title, _, small in METRICS}
    columns = [(own, key) for own in case["own"] for key in case["ratio_metrics"]]
    columns = [c for c in columns if any(c[1] in row.get(c[0], {}) for row in case["ratios"].values())]
    heads = [
        f"{titles[own]} {names[key][0]}{'' if names[key][1] else ' (more is better)'}" for own, key in columns
    ]
    lines = ["| ratio to | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(columns)]
    for peer, row in case["ratios"].items():
        cells = [_ratio(row.get(own, {}).get(key)) for own, key in columns]
        lines.append(f"| {titles[peer]} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _ratio(cell: dict[str, float] | None) -> str:
    if cell is None:
        return ""
    low, high = f"{cell['low']:.2f}", f"{cell['high']:.2f}"
    return f"{cell['median']:.2f}" + ("" if low == high else f" ({low}-{high})")


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _agreed(found: dict[str, int] | None) -> str:
    if found is None:
        return "no reference"
    share = found["leading_equal"] / found["tokens"]
    return f"{found['requests_equal']} of {found['requests']} requests, {share:.0%} before a difference"
