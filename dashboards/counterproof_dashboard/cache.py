"""Memory caches of the running server, keyed by what the files are; nothing is kept on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from counterproof.measure.prefix_miss import NearMiss
from counterproof.run.targets.explain_miss import decoder_for
from counterproof_dashboard import data, misses, replication, samples, stage_samples
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


def stages(name: str) -> tuple[pd.DataFrame, list[str]]:
    """Stage times of every run of a study; see `stage_samples.stage_times`."""
    found: tuple[pd.DataFrame, list[str]] = _stages(_place(name))
    return found


def workload(name: str, block: int) -> misses.Workload:
    """A block's sealed requests; see `misses.workload`."""
    found: misses.Workload = _workload(_place(name), block)
    return found


def near_misses(name: str, block: int, size: int) -> list[NearMiss]:
    """Near misses of a block's requests in blocks of `size` tokens."""
    found: list[NearMiss] = _near_misses(_place(name), block, size)
    return found


def review(folder: str) -> replication.Review:
    """The public view of a review as its files are now."""
    found: replication.Review = _review(folder, replication.fingerprint(Path(folder)))
    return found


@st.cache_resource(max_entries=8, show_spinner="Reading the tokenizer …")
def decoder(model: str, tokenizer_sha256: str) -> tuple[Any, str]:
    """See `explain_miss.decoder_for`."""
    return decoder_for(model, tokenizer_sha256)


@st.cache_data(max_entries=512, show_spinner="Reading and checking records …")
def _study(place: Place) -> Study:
    return data.read_study(data.store_of(Path(place.root)), place.name)


@st.cache_data(max_entries=64, show_spinner="Reading requests …")
def _latencies(place: Place, metric: str) -> tuple[pd.DataFrame, list[ArmCount]]:
    return samples.latency_samples(_study(place), metric)


@st.cache_data(max_entries=64, show_spinner="Reading memory samples …")
def _memory(place: Place, column: str, source: str) -> tuple[pd.DataFrame, list[str]]:
    return samples.memory_timelines(_study(place), column, source)


@st.cache_data(max_entries=64, show_spinner="Reading stage traces …")
def _stages(place: Place) -> tuple[pd.DataFrame, list[str]]:
    return stage_samples.stage_times(_study(place))


@st.cache_data(max_entries=16, show_spinner="Reading prompts …")
def _workload(place: Place, block: int) -> misses.Workload:
    return misses.workload(_study(place), block)


@st.cache_data(max_entries=64, show_spinner="Comparing prompts …")
def _near_misses(place: Place, block: int, size: int) -> list[NearMiss]:
    return misses.nearest(_workload(place, block).prompts, size)


@st.cache_data(max_entries=64, show_spinner="Checking ledgers …")
def _review(folder: str, fingerprint: str) -> replication.Review:
    del fingerprint  # part of the key alone
    return replication.read(Path(folder))
