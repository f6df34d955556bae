"""Holm's step-down adjustment over the preregistered family.

Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
"""

from __future__ import annotations

from collections.abc import Mapping


def holm(p_values: Mapping[str, float | None], family: int | None = None) -> dict[str, float | None]:
    """Adjusted p-values by name. A missing p-value stays missing but keeps its place in the family's size."""
    size = max(family or 0, len(p_values))
    known = sorted((p, name) for name, p in p_values.items() if p is not None)
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    running = 0.0
    for i, (p, name) in enumerate(known):
        running = max(running, min(1.0, (size - i) * p))
        adjusted[name] = running
    return adjusted
