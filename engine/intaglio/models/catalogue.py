"""Where models lie: from a folder, a catalogue name or a hub id to a checked folder, and what identifies it.

A model folder holds `config.json`, `tokenizer.json` and its weights as `model.safetensors` or as shards
named by `model.safetensors.index.json`. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.errors import ModelError
from intaglio.models.sources import data_root

SHIPPED = ("tiny",)
FETCHED = ("smollm2-135m",)

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One catalogue entry. `folder` is where it lies or would lie; `present` whether it is complete there."""

    name: str
    origin: str
    folder: Path
    present: bool


def models_folder() -> Path:
    """Where fetched models lie: $INTAGLIO_MODELS, else $COUNTERPROOF_STORE/models, else ./store/models."""
    if named := os.environ.get("INTAGLIO_MODELS"):
        return Path(named).expanduser().resolve()
    store = os.environ.get("COUNTERPROOF_STORE") or "store"
    return Path(store).expanduser().resolve() / "models"


def catalogue_folder(name: str) -> Path:
    """The folder a catalogue name stands for, present or not. Raises ModelError for another name."""
    if name in SHIPPED:
        return data_root() / "models" / name
    if name in FETCHED:
        return models_folder() / name
    raise ModelError(
        f"no model named '{name}' in the catalogue; known: {', '.join(SHIPPED + FETCHED)}", field="model"
    )


def list_models() -> list[ModelInfo]:
    """Every catalogue entry, shipped ones first."""
    rows = [(name, "shipped") for name in SHIPPED] + [(name, "fetched") for name in FETCHED]
    return [ModelInfo(n, o, catalogue_folder(n), not problems(catalogue_folder(n))) for n, o in rows]


def resolve(model: str | Path, *, download: bool = True) -> Path:
    """The complete folder of a model: a catalogue name, a folder, or a hub id such as `owner/name`.

    A name of the catalogue wins over a folder of the same name (write `./tiny` for that folder). A hub id is
    taken from the local hub cache, and from the network only with `download` and unless HF_HUB_OFFLINE is set.
    Raises ModelError, with what to do next, for anything missing or incomplete.
    """
    text = str(model)
    if not text.strip() or "\0" in text:
        raise ModelError("the model is empty; give a folder, a catalogue name or a hub id", field="model")
    if text in SHIPPED + FETCHED:
        return _checked_catalogue(text)
    path = Path(text).expanduser()
    if path.is_dir():
        return _checked(path.resolve(), "give a folder in Hugging Face layout with safetensors weights")
    if path.exists():
        raise ModelError(
            f"'{text}' is a file; give the folder that holds {CONFIG} and the weights", field="model"
        )
    if _HUB_ID.fullmatch(text) and ".." not in text:
        return _checked(_hub_snapshot(text, download), "this hub repository cannot be loaded")
    known = ", ".join(SHIPPED + FETCHED)
    raise ModelError(
        f"no model '{text}': it is no folder, no catalogue name ({known}) and no hub id (owner/name)",
        field="model",
    )


def problems(folder: Path) -> list[str]:
    """What keeps `folder` from being loaded, one sentence each; empty when complete."""
    if not folder.is_dir():
        return [f"folder {folder} does not exist"]
    found = [f"{name} is missing" for name in (CONFIG, TOKENIZER) if not (folder / name).is_file()]
    try:
        found += [f"{path.name} is missing" for path in weight_files(folder) if not path.is_file()]
    except ModelError as error:
        found.append(str(error))
    return found


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model in name order: one file, or the shards that the index names.

    Raises ModelError when there are none, or the index is damaged or names a path outside the folder.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / WEIGHTS_INDEX
    if not index.is_file():
        raise ModelError(
            f"{folder} holds no .safetensors weights (neither {WEIGHTS} nor {WEIGHTS_INDEX}); convert them",
            field="model",
        )
    mapping = read_json(index).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise ModelError(f"{index} has no weight_map; fetch the model again", field="model")
    names = sorted({str(name) for name in mapping.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(
                f"{index} names '{name}', which is no file beside it; do not use it", field="model"
            )
    return [folder / name for name in names]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model's file. Raises ModelError when it is unreadable or no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}; fetch the model again", field="model") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object; fetch the model again", field="model")
    return value


def file_hashes(folder: Path) -> dict[str, str]:
    """sha256 of every file that decides what the model computes, by name, in name order."""
    names = [CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, WEIGHTS_INDEX]
    paths = [folder / name for name in names if (folder / name).is_file()] + weight_files(folder)
    return {path.name: sha256_file(path) for path in sorted(paths)}


def fingerprint(folder: Path) -> dict[str, str]:
    """What identifies a model: sha256 of `weights`, `config`, `tokenizer`, `template`, and of all as `model`.

    A part made of one file has that file's sha256; one made of several has the sha256 of its `name sha256`
    lines. A model without a chat template has the sha256 of the empty string as its `template`.
    """
    hashes = file_hashes(folder)
    weights = {name: value for name, value in hashes.items() if name.endswith(".safetensors")}
    parts = {
        "weights": weights | {k: v for k, v in hashes.items() if k == WEIGHTS_INDEX},
        "config": {k: v for k, v in hashes.items() if k in (CONFIG, GENERATION)},
        "tokenizer": {k: v for k, v in hashes.items() if k in (TOKENIZER, TOKENIZER_CONFIG)},
    }
    result = {part: _combined(files) for part, files in parts.items()}
    result["template"] = hashlib.sha256((chat_template_text(folder) or "").encode()).hexdigest()
    result["model"] = _combined(result)
    return result


def chat_template_text(folder: Path) -> str | None:
    """The model's chat template: `chat_template.jinja`, else the (default) one in tokenizer_config.json."""
    if (folder / TEMPLATE).is_file():
        try:
            return (folder / TEMPLATE).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {folder / TEMPLATE}: {error}", field="model") from error
    if not (folder / TOKENIZER_CONFIG).is_file():
        return None
    template = read_json(folder / TOKENIZER_CONFIG).get("chat_template")
    if isinstance(template, list):
        named = {row.get("name"): row.get("template") for row in template if isinstance(row, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def sha256_file(path: Path) -> str:
    """sha256 of a file, read in pieces; remembered within this process by path, size and modification time."""
    stat = path.stat()
    return _sha256_of(str(path), stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _sha256_of(path: str, _size: int, _mtime_ns: int) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _combined(hashes: dict[str, str]) -> str:
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    return hashlib.sha256("".join(_lines(hashes)).encode()).hexdigest()


def _lines(hashes: dict[str, str]) -> Iterator[str]:
    for name in sorted(hashes):
        yield f"{name} {hashes[name]}\n"


def _checked(folder: Path, advice: str) -> Path:
    found = problems(folder)
    if found:
        raise ModelError(f"{folder} is no complete model: {'; '.join(found)}; {advice}", field="model")
    return folder


def _checked_catalogue(name: str) -> Path:
    folder = catalogue_folder(name)
    if name in SHIPPED:
        return _checked(folder, "it ships with the project; reinstall it")
    return _checked(folder, f"run: counterproof models fetch {name}")


def _hub_snapshot(repo_id: str, download: bool) -> Path:
    from huggingface_hub import snapshot_download

    online = download and os.environ.get("HF_HUB_OFFLINE", "0").lower() not in ("1", "true", "yes", "on")
    try:
        return Path(
            snapshot_download(repo_id, allow_patterns=_HUB_PATTERNS, local_files_only=not online)  # type: ignore[no-any-return,unused-ignore]
        )
    except Exception as error:  # the hub client raises many kinds; each means the model is not to be had
        place = "on the hub" if online else "in the local hub cache (network use is off)"
        raise ModelError(
            f"model '{repo_id}' is not a folder and was not found {place}: {type(error).__name__}; "
            "check the name, the network and HF_HUB_OFFLINE, or give a folder",
            field="model",
        ) from error
