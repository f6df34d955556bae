"""The short report of a replay, in Markdown, from its record alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterproof.commands.console import number, one_line, percent


def render(record: Mapping[str, Any]) -> str:
    """The report of replay.json. The verdict comes first, what limits it follows."""
    metric = record["metric"]
    lines = [
        f"# Replay of packet {record['packet_id']}: {record['verdict']}",
        "",
        f"{record['reason'][:1].upper()}{record['reason'][1:]}.",
        "",
        f"{metric['metric']} {metric['statistic']} over {_blocks(record['blocks'])}; ratios to the baseline arm.",
        "",
        "| arm | opaque name | author | here |",
        "|---|---|---|---|",
        *_rows(record),
        "",
        *_levels(record),
        f"Outputs equal to the author's token by token: {record['outputs']['equal']} of "
        f"{record['outputs']['requests']} requests. Failed attempts: {len(record['failed_attempts'])}.",
        "",
        *_differences(record),
        f"Network: {record['network']['in_process']}; namespace: {record['network']['namespace']}; "
        f"a try to leave ended in {record['network']['probe']}.",
        "",
        f"Packet root {record['root']}; nonce {record['nonce']}; estimates frozen as {record['estimates_sha256']} "
        "before the author's results were opened.",
        "",
        record["note"],
        "",
    ]
    return "\n".join(lines)


def render_blind(record: Mapping[str, Any]) -> str:
    """The report of a sealed packet's replay: ratios of opaque pairs, in alphabetical order."""
    metric = record["metric"]
    lines = [
        f"# Replay of packet {record['packet_id']}: sealed",
        "",
        f"{metric['metric']} {metric['statistic']} over {_blocks(record['blocks'])}.",
        "",
        "| arm | over arm | ratio |",
        "|---|---|---|",
        *(f"| {p['numerator']} | {p['denominator']} | {ratio(p)} |" for p in record["pairs"]),
        "",
        f"Failed attempts: {len(record['failed_attempts'])}. Network: {record['network']['in_process']}; "
        f"namespace: {record['network']['namespace']}; a try to leave ended in {record['network']['probe']}.",
        "",
        f"Packet root {record['root']}; nonce {record['nonce']}; estimates frozen as {record['estimates_sha256']}.",
        "",
        record["note"],
        "",
    ]
    return "\n".join(lines)


def ratio(described: Mapping[str, Any]) -> str:
    """A described sample as `-49.6 % (95 % -50.3 % to -48.9 %)`."""
    if described["ratio"] is None:
        return "not measured"
    interval = described["ratio_ci"]
    inside = f" (95 % {percent(interval[0])} to {percent(interval[1])})" if interval else ", one block"
    return percent(described["ratio"]) + inside


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"


def _rows(record: Mapping[str, Any]) -> list[str]:
    return [
        f"| {arm} | {record['opened'][arm]} | {ratio(both['author'])} | {ratio(both['replay'])} |"
        for arm, both in record["ratios"].items()
    ]


def _levels(record: Mapping[str, Any]) -> list[str]:
    """Absolute numbers, only where code, libraries and hardware are those of the author."""
    if not record["absolute_numbers_comparable"]:
        return ["Absolute numbers are not compared: see the differences below.", ""]
    unit = record["metric"].get("unit", "")
    lines = []
    for arm, name in record["opened"].items():
        theirs, ours = _median(record["author_per_block"][arm]), _median(record["per_block"][name])
        lines.append(f"- {arm}: median of blocks {number(theirs, unit)} there, {number(ours, unit)} here")
    return [*lines, ""]


def _differences(record: Mapping[str, Any]) -> list[str]:
    if not record["differences"]:
        return ["No difference in code, libraries and hardware class.", ""]
    return [
        "Differences from the author's surroundings:",
        *(f"- {one_line(line)}" for line in record["differences"]),
        "",
    ]


def _median(values: list[float | None]) -> float | None:
    present = sorted(value for value in values if value is not None)
    if len(present) < len(values) or not present:
        return None
    middle = len(present) // 2
    return present[middle] if len(present) % 2 else (present[middle - 1] + present[middle]) / 2
