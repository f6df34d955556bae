"""Every kernel against float64: an error of at most twice that of torch in the same dtype, poisoned tails and all."""

from __future__ import annotations

import paged
import torch
import torch.nn.functional as F
from report import Report

from intaglio.compute.gpu import ops
from intaglio.compute.gpu.attend import PagedAttention

# A difference that fp32 sums of a few hundred terms may show where torch happens to be exact.
SLACK = 4 * torch.finfo(torch.float32).eps

SMALL = (
    paged.Case(((1, 0),), 4, 4, 32),
    paged.Case(((1, 199), (1, 3), (17, 47)), 6, 2, 16),
    paged.Case(((1, 199), (40, 30)), 6, 2, 16, window=50),
    paged.Case(((33, 64),), 9, 3, 24, block_tokens=7),
    paged.Case(((1, 600), (2, 530)), 2, 1, 16, block_tokens=32),
)
LARGE = (
    paged.Case(((1, 8191), (1, 700), (1, 5), (512, 0)), 32, 8, 128),
    paged.Case(((1024, 1024),), 9, 3, 64),
    paged.Case(((1, 4000), (300, 900)), 16, 4, 256, window=512, block_tokens=64),
)


def names(interpreted: bool) -> list[str]:
    """What `run` checks."""
    kernels = [f"attention {mode} {dtype} {case}" for mode, dtype, case in _attentions(interpreted)]
    rows = [
        f"{name} {dtype}"
        for name in ("rms_norm", "qk_norm", "swiglu", "linear")
        for dtype in _dtypes(interpreted)
    ]
    return [*kernels, _mixed(interpreted), *rows, "store"]


def _mixed(interpreted: bool) -> str:
    return f"attention of a {'fp16' if interpreted else 'bf16'} store by fp32 queries"


def _dtypes(interpreted: bool) -> tuple[str, ...]:
    return ("fp32", "fp16") if interpreted else ("fp32", "fp16", "bf16")


def _attentions(interpreted: bool) -> list[tuple[str, str, paged.Case]]:
    cases = SMALL if interpreted else (*SMALL, *LARGE)
    every = [(m, d, c) for m in ("fast", "invariant") for d in _dtypes(interpreted) for c in cases]
    # In fp32 the widest heads compile for longer than they are worth: no model has both.
    return [(mode, dtype, case) for mode, dtype, case in every if dtype != "fp32" or case.dim <= 128]


def run(device: torch.device, interpreted: bool, report: Report) -> None:
    """All of `names`."""
    for mode, dtype, case in _attentions(interpreted):
        setup = paged.prepare(case, paged.DTYPES[dtype], device)
        _attention(f"attention {mode} {dtype} {case}", mode, setup, report)
    # The interpreter rounds to bfloat16 as no device does.
    narrow = torch.float16 if interpreted else torch.bfloat16
    mixed = paged.prepare(SMALL[1], torch.float32, device, narrow)
    _attention(_mixed(interpreted), "fast", mixed, report)
    for dtype in _dtypes(interpreted):
        _rows(dtype, device, report)
    _store(device, report)


def _attention(name: str, mode: str, setup: paged.Setup, report: Report) -> None:
    case = setup.case
    before = setup.store.isnan().sum().item()
    results = setup.attend(PagedAttention(case.heads, case.kv_heads, case.dim, mode == "invariant", False))
    ours = theirs = lse_error = 0.0
    for row, (out, lse) in enumerate(results):
        want, want_lse = paged.exact(setup, row)
        ours = max(ours, _error(out, want))
        theirs = max(theirs, _error(paged.library(setup, row), want))
        lse_error = max(lse_error, _error(lse, want_lse))
    poison = setup.store.isnan().sum().item()
    passed = ours <= 2 * theirs + SLACK and lse_error <= 1e-4 and poison == before > 0
    report.check(name, passed, ours=ours, torch=theirs, lse=lse_error, poisoned=poison)


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference; NaN counts as infinite."""
    difference = (got.double() - want).abs().nan_to_num(nan=float("inf"))
    return difference.max().item()


def _rows(dtype: str, device: torch.device, report: Report) -> None:
    draw = torch.Generator().manual_seed(5)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(device, paged.DTYPES[dtype])

    x, weight, bias = noise(70, 131), noise(200, 131), noise(200)
    gain, heads, gate_up = noise(131).float(), noise(9, 4, 24), noise(9, 2 * 172)
    head_gain = noise(4, 24).float()

    def normed(value: torch.Tensor, by: torch.Tensor, dim: int) -> torch.Tensor:
        return F.rms_norm(value, (dim,), eps=1e-5) * by

    def gated(value: torch.Tensor) -> torch.Tensor:
        return F.silu(value[:, :172]) * value[:, 172:]

    wide = x.double()
    cases = {
        "rms_norm": (
            ops.rms_norm(x, gain, 1e-5),
            normed(x, gain.to(x.dtype), 131),
            normed(wide, gain.double(), 131),
        ),
        "qk_norm": (
            ops.rms_norm(heads, head_gain, 1e-5),
            normed(heads, head_gain.to(x.dtype), 24),
            normed(heads.double(), head_gain.double(), 24),
        ),
        "swiglu": (ops.swiglu(gate_up), gated(gate_up), gated(gate_up.double())),
        "linear": (
            ops.linear(x, weight, bias, False),
            F.linear(x, weight, bias),
            F.linear(wide, weight.double(), bias.double()),
        ),
    }
    for name, (got, theirs, want) in cases.items():
        ours, library = _error(got, want), _error(theirs, want)
        passed = got.dtype == x.dtype and ours <= 2 * library + SLACK * want.abs().max().item()
        report.check(f"{name} {dtype}", passed, ours=ours, torch=library)


def _store(device: torch.device, report: Report) -> None:
    """Scattered slots receive exactly the cast rows, padding goes nowhere, the rest keeps its poison."""
    flat = torch.randn(6, 5 + 2 * 3 * 8, generator=torch.Generator().manual_seed(6)).to(device)
    fresh = flat[:, 5:].view(6, 2, 3, 8)
    layer = torch.full((40, 2, 3, 8), float("nan"), dtype=torch.float16, device=device)
    slots = [17, -1, 0, 39, -1, 4]
    ops.store_rows(fresh, layer, torch.tensor(slots, dtype=torch.int32, device=device))
    kept = [i for i, slot in enumerate(slots) if slot >= 0]
    used = [slots[i] for i in kept]
    rest = [slot for slot in range(40) if slot not in used]
    exact = torch.equal(layer[used], fresh[kept].half())
    report.check("store", exact and layer[rest].isnan().all().item(), stored=len(used))
