"""Memory caches of the running server, keyed by what the files are; nothing is kept on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from counterproof_dashboard import data, samples
from counterproof_dashboard.data import Study
from counterproof_dashboard.samples import ArmCount


@dataclass(frozen=True)
class Place:
    """Which state of which study: `fingerprint` changes with any of its files."""

    root: str
    name: str
    fingerprint: str


def _place(name: str) -> Place:
    store = data.store_of()
    return Place(str(store.root), name, data.fingerprint(store, name))


def study(name: str) -> Study:
    """The study as its files are now. Raises nothing for what is in them."""
    found: Study = _study(_place(name))
    return found


def latencies(name: str, metric: str) -> tuple[pd.DataFrame, list[ArmCount]]:
    """Samples of one metric of a study; see `samples.latency_samples`."""
    found: tuple[pd.DataFrame, list[ArmCount]] = _latencies(_place(name), metric)
    return found


def memory(name: str, column: str, source: str) -> tuple[pd.DataFrame, list[str]]:
    """Timelines of one memory column of a study; see `samples.memory_timelines`."""
    found: tuple[pd.DataFrame, list[str]] = _memory(_place(name), column, source)
    return found


@st.cache_data(max_entries=512, show_spinner="Reading and checking records …")
def _study(place: Place) -> Study:
    return data.read_study(data.store_of(Path(place.root)), place.name)


@st.cache_data(max_entries=64, show_spinner="Reading requests …")
def _latencies(place: Place, metric: str) -> tuple[pd.DataFrame, list[ArmCount]]:
    return samples.latency_samples(_study(place), metric)


@st.cache_data(max_entries=64, show_spinner="Reading memory samples …")
def _memory(place: Place, column: str, source: str) -> tuple[pd.DataFrame, list[str]]:
    return samples.memory_timelines(_study(place), column, source)
