"""Where experiment configurations lie: a folder of the user's, the checkout's, or the installed package's."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from counterproof.errors import InputError, SetupError

VARIABLE = "COUNTERPROOF_EXPERIMENTS"
INSTALLED = "counterproof_experiments"


def experiments_folder() -> Path:
    """`$COUNTERPROOF_EXPERIMENTS`, else `experiments/` of the checkout, else the installed copy.

    Raises SetupError when none is there.
    """
    if given := os.environ.get(VARIABLE):
        folder = Path(given).expanduser().absolute()
        if not folder.is_dir():
            raise SetupError(f"{VARIABLE} names {folder}, which is not a folder")
        return folder
    checkout = Path(__file__).resolve().parents[3] / "experiments"
    if checkout.is_dir() and (checkout.parent / "platform" / "counterproof").is_dir():
        return checkout
    spec = importlib.util.find_spec(INSTALLED)
    for place in (spec.submodule_search_locations or []) if spec else []:
        return Path(place).absolute()
    raise SetupError(
        "the experiment configurations are not installed",
        details=[f"reinstall the package, or name a folder with {VARIABLE}"],
    )


def experiment_names(folder: Path) -> list[str]:
    """Every experiment of the folder: one YAML file each."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def check_experiment(folder: Path, name: str) -> None:
    """Raise InputError that lists the experiments, unless `name` is one of them."""
    names = experiment_names(folder)
    if name not in names:
        raise InputError(f"there is no experiment '{name}'", details=[f"there are: {', '.join(names)}"])


def group_options(folder: Path, group: str) -> list[str] | None:
    """Options of a config group, None when `group` is not one."""
    place = folder / group
    if "." in group or not group or not place.is_dir():
        return None
    return sorted(path.stem for path in place.glob("*.yaml"))
