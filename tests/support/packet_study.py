"""A sealed synthetic study that can be packed: with workloads on disk, a model folder, and full plan fields.

It is the synthetic study of `synthetic_study.py`, whose plan and requests are extended before anything is sealed.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from counterproof.record import canonical
from counterproof.workload import sealed
from counterproof.workload.sealed import SealedRequest
from intaglio.models import catalogue


def _sibling(name: str) -> ModuleType:
    key = f"counterproof_tests_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, Path(__file__).with_name(f"{name}.py"))
        if spec is None or spec.loader is None:
            raise ImportError(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


synthetic = _sibling("synthetic_study")


def fake_model(folder: Path) -> Path:
    """Files that identify a model without being one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"architectures":["LlamaForCausalLM"]}\n', encoding="utf-8")
    (folder / "tokenizer.json").write_text('{"version":"1.0"}\n', encoding="utf-8")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 8)
    return folder


def requests(seed: int, block: int, count: int, prompt_tokens: int, new_tokens: int) -> list[SealedRequest]:
    """Deterministic requests; `block` -1 warms up."""
    rng = np.random.default_rng([seed, block + 1])
    return [
        SealedRequest(
            request_index=index,
            token_ids=tuple(int(i) for i in rng.integers(3, 500, prompt_tokens)),
            max_new_tokens=new_tokens,
            seed=index,
            ignore_eos=True,
        )
        for index in range(count)
    ]


def build(store: Path, model_folder: Path, **fields: Any) -> Path:
    """Write the study; `fields` are those of the synthetic StudyModel, and `shuffled` reverses every dict."""
    shuffled = bool(fields.pop("shuffled", False))
    small = {"prompt_tokens": 16, "new_tokens": 6, "equivalence": False}
    model = synthetic.StudyModel(**{**small, **fields})
    folder = store / "studies" / model.study
    loads = {
        b: requests(7, b, model.requests, model.prompt_tokens, model.new_tokens) for b in range(model.blocks)
    }
    warmup = requests(7, -1, 1, model.prompt_tokens, model.new_tokens)
    plan_of, config_of = synthetic.plan_of, synthetic._config

    def planned(_: Any) -> dict[str, Any]:
        plan = plan_of(model)
        workloads = folder / "workloads"
        for block, rows in loads.items():
            sealed.write(workloads / f"{block:02d}.parquet", rows)
        plan["workload"]["warmup_sha256"] = sealed.write(workloads / "warmup.parquet", warmup)
        names = sorted(path.name for path in workloads.iterdir())
        plan["workload"]["files"] = {name: canonical.sha256_file(workloads / name) for name in names}
        plan["target"] = "intaglio_local"
        plan["run_deadline_s"] = 60.0
        plan["environment"] = {
            "python.version": "3.11.0",
            "os.machine": "x86_64",
            "cpu.model": "Synthetic CPU",
            "cpu.logical": 2,
            "library.torch": "2.13.0",
            "model.model_sha256": catalogue.fingerprint(model_folder)["model"],
            "env.names": "SECRET_PLACE",
        }
        return reverse(plan) if shuffled else plan

    def workload_sha(_: Any, block: int | None) -> str:
        return sealed.sha256(loads[block] if block is not None and block in loads else warmup)

    def config(study: Any, arm: str) -> dict[str, Any]:
        return {**config_of(study, arm), "engine.model": str(model_folder)}

    with (
        mock.patch.object(synthetic, "plan_of", planned),
        mock.patch.object(synthetic, "_workload_sha", workload_sha),
        mock.patch.object(synthetic, "_config", config),
    ):
        return synthetic.build(store, model)


def reverse(value: Any) -> Any:
    """The same content with every dictionary filled in the other order."""
    if isinstance(value, dict):
        return {key: reverse(value[key]) for key in reversed(list(value))}
    return [reverse(item) for item in value] if isinstance(value, list) else value
