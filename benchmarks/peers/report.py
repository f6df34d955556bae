"""A comparison's document as Markdown, and both kept as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.peers import table


def write(folder: Path, name: str, document: dict[str, Any]) -> None:
    """Write NAME.md and NAME.json into `folder`."""
    if not name or Path(name).name != name:
        raise ValueError(f"'{name}' is no file name")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(markdown(document), encoding="utf-8")


def markdown(document: dict[str, Any]) -> str:
    """The tables of every case, then versions, settings and the machine."""
    lines = [
        f"# {document['model']}: intaglio and other engines",
        "",
        f"{document['utc']}, {document['threads']} threads ({document['wait_policy']} waiting), "
        f"{document['repeats']} repeats, contestants in turn, a fresh process each. Medians; a ratio is the median "
        "of the repeats' own ratios (and their range), below 1 where intaglio takes less. "
        f"{_load(document['load_average'])}",
        "",
    ]
    for case in document["cases"]:
        lines += [table.markdown(case, document["titles"])]
        if case["rates"]:
            rates = ", ".join(f"{name} {value:.1f}" for name, value in case["rates"].items())
            lines += [f"Floor from the highest rates measured between the runs: {rates}.", ""]
    lines += ["## Versions and settings", ""]
    lines += [f"- {title}: {text}" for title, text in _versions(document).items()]
    lines += ["", "## Machine", ""]
    lines += [f"- {key}: {value}" for key, value in (document["machine"] | document["code"]).items()]
    return "\n".join(lines) + "\n"


def _load(found: dict[str, float]) -> str:
    if not found:
        return ""
    return f"Load average at the end of a run: median {found['median']:.1f}, most {found['most']:.1f}."


def _versions(document: dict[str, Any]) -> dict[str, str]:
    """What each contestant ran, from the first case it ran in; facts that differ by case are joined."""
    found: dict[str, str] = {}
    for name, title in document["titles"].items():
        entries = [case["contestants"][name] for case in document["cases"] if name in case["contestants"]]
        entries = [entry for entry in entries if "versions" in entry]
        if not entries:
            continue
        versions = ", ".join(f"{key} {value}" for key, value in entries[0]["versions"].items())
        facts: dict[str, list[str]] = {}
        for entry in entries:
            for key, value in entry["facts"].items():
                seen = facts.setdefault(key, [])
                if value not in seen:
                    seen.append(value)
        found[title] = "; ".join(
            [versions, *(f"{key}: {' / '.join(values)}" for key, values in facts.items())]
        )
    return found
