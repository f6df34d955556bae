"""Why a study says nothing about failure and recovery, for the report and the pages."""

from __future__ import annotations


def faults_reason(planned: bool | None) -> str:
    """Why no fault is recorded. `planned`: the plan's `faults`, None for plans of before there was such a phase."""
    if planned:
        return "the plan asks for it, and the study ended before that phase"
    return (
        "the plan does not ask for it (study.faults: false, the default, since faults strike copies of the study for "
        "some minutes and say nothing about the change itself)"
    )
