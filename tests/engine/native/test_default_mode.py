"""numerics.mode=auto, the default: invariant where the native kernels can be had, else fast, and said so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from intaglio.cli import main
from intaglio.cluster.worker import Worker
from intaglio.compute import selftest
from intaglio.compute.native import backend as native
from intaglio.compute.native import build
from intaglio.config import EngineConfig, parse_overrides
from intaglio.engine import Engine
from intaglio.errors import NumericsError
from intaglio.intake.request import SamplingParams
from intaglio.intake.step_plan import StepPlan, StepResult

PROMPTS = ["The import statement", "A class definition", "x = 1"]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def run(model: Path, *overrides: str) -> tuple[list[list[bytes]], dict[str, object], list[dict[str, object]]]:
    """Logits of every output token as bytes, the effective configuration, and the fallback events."""
    with Engine(parse_overrides([f"model={model}", "threads.count=1", *overrides])) as engine:
        outputs = engine.generate(PROMPTS, PARAMS, return_logits=True, on_error="raise")
        fallen = [event for event in engine.drain_events() if event["kind"] == "fallback"]
        bits = [[row.tobytes() for row in output.logits or []] for output in outputs]
        return bits, dict(engine.effective_config()), fallen


def test_the_default_is_auto() -> None:
    assert EngineConfig().numerics.mode == "auto"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_default_is_invariant_where_the_kernels_are(
    library: object, tiny_model: Path, dtype: str
) -> None:
    bits, effective, fallen = run(tiny_model, f"dtype={dtype}")
    assert effective["numerics.mode"] == "invariant"
    assert str(effective["kernel_path"]).startswith("invariant/cpu/native-")
    assert fallen == []
    assert [len(rows) for rows in bits] == [12, 12, 12]
    assert bits == run(tiny_model, f"dtype={dtype}", "numerics.mode=invariant")[0]
    # Inverse: the library path rounds otherwise, so that equal bits above mean something.
    other, library_path, _ = run(tiny_model, f"dtype={dtype}", "numerics.mode=fast")
    assert library_path["numerics.mode"] == "fast"
    assert str(library_path["kernel_path"]).startswith("fast/cpu/")
    assert other != bits


def test_the_kernels_leave_no_threads_of_openmp_beside_their_own(
    library: object, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actively waiting ones would take the cores: a step then takes twice as long."""
    seen: list[int] = []
    execute = Worker.execute

    def spy(self: Worker, plan: StepPlan) -> StepResult:
        seen.append(torch.get_num_threads())
        return execute(self, plan)

    monkeypatch.setattr(Worker, "execute", spy)
    before = torch.get_num_threads()
    try:
        for mode in ("invariant", "fast"):
            with Engine(
                parse_overrides([f"model={tiny_model}", "threads.count=2", f"numerics.mode={mode}"])
            ) as engine:
                engine.generate("if", SamplingParams(max_tokens=1))
                assert engine.effective_config()["threads.count"] == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


def test_switched_off_kernels_make_the_default_fast(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTAGLIO_NATIVE_ISA", "off")
    bits, effective, fallen = run(tiny_model)
    assert effective["numerics.mode"] == "fast"
    (event,) = fallen
    assert (event["path"], event["wanted"], event["effective"]) == ("numerics.mode", "invariant", "fast")
    assert "switched off" in str(event["reason"])
    explicit, _, nothing = run(tiny_model, "numerics.mode=fast")
    assert explicit == bits
    assert nothing == []


def test_kernels_that_fail_their_proof_make_the_default_fast(
    library: object, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_proven", lambda _: False)
    _, effective, (event,) = run(tiny_model)
    assert effective["numerics.mode"] == "fast"
    assert "changed bits" in str(event["reason"])


def test_invariant_asked_for_is_refused_where_no_self_test_passes(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise NumericsError("linear qkv changed with batch", field="numerics.mode")

    monkeypatch.setenv("INTAGLIO_NATIVE_ISA", "off")
    monkeypatch.setattr(selftest, "require_invariance", refuse)
    with pytest.raises(NumericsError, match="changed with batch"):
        run(tiny_model, "numerics.mode=invariant")
    assert run(tiny_model)[1]["numerics.mode"] == "fast"


def test_a_machine_without_a_compiler_generates_and_says_so(tiny_model: Path, tmp_path: Path) -> None:
    """A process of its own whose PATH holds no compiler and whose cache holds no library."""
    (tmp_path / "bin").mkdir()
    hidden = ("CXX", "INTAGLIO_NATIVE_ISA")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"PATH": str(tmp_path / "bin"), "INTAGLIO_CACHE": str(tmp_path / "cache")}
    command = [
        sys.executable,
        "-m",
        "intaglio",
        "generate",
        "--model",
        str(tiny_model),
        "--prompt",
        PROMPTS[0],
    ]
    done = subprocess.run(
        [*command, "--max-tokens", "8", "threads.count=1"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with Engine(parse_overrides([f"model={tiny_model}", "threads.count=1", "numerics.mode=fast"])) as engine:
        (output,) = engine.generate([PROMPTS[0]], SamplingParams(max_tokens=8))
    assert done.stdout == output.text
    (note,) = [line for line in done.stderr.splitlines() if "fallback" in line]
    assert "numerics.mode" in note
    assert "effective=fast" in note
    assert "no C++ compiler" in note
    assert not (tmp_path / "cache").exists()


def test_the_first_start_says_that_it_compiles(
    library: object, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "is_pending", lambda: True)
    command = [
        "generate",
        "--model",
        str(tiny_model),
        "--prompt",
        "A",
        "--max-tokens",
        "2",
        "threads.count=1",
    ]
    assert main(command) == 0
    assert "compiling the native kernels" in capsys.readouterr().err
    assert main([*command, "numerics.mode=fast"]) == 0
    assert capsys.readouterr().err == ""
