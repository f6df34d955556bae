"""KV formats against each other: bytes a token, time per output token, and what they do to predictions.

    python benchmarks/kv_formats.py --model smollm2-135m --context 1024 --requests 4
    python benchmarks/kv_formats.py --model tiny --context 300 --rounds 3 --quality-tokens 0

One process holds an engine of each format. In every round each engine decodes the same requests, in rotating order;
ratios are taken within a round and their median is printed with the least and the greatest. Below 1 means less time
than the first format. Quality is measured on held-out text against fp32 with fp32 KV (see `intaglio quality`).
Other load distorts the times: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.config import EngineConfig, Scalar, from_flat
from intaglio.engine import Engine
from intaglio.intake.request import SamplingParams
from intaglio.intake.tokenizer import Tokenizer
from intaglio.models import catalogue
from intaglio.quality.comparison import compare
from intaglio.quality.text import held_out_text, windows

FORMATS = ("bf16", "fp32", "fp8", "int8", "int4")
WINDOW = 256


@dataclass
class Cell:
    """What one format showed. `ratios`: TPOT over that of the first format, one a round; `tpot_ms` likewise."""

    bytes_per_token: int
    tpot_ms: list[float]
    ratios: list[float]
    quality: dict[str, Any] | None = None


def main(argv: list[str] | None = None) -> int:
    """Measure and print the table. Returns the exit status."""
    args = _arguments(argv)
    cells, path = _times(args)
    if args.quality_tokens:
        for name, cell in cells.items():
            cell.quality = _quality(args, name)
    _print(args, path, cells)
    if args.json:
        facts = {
            "arguments": vars(args),
            "kernel_path": path,
            "formats": {k: vars(c) for k, c in cells.items()},
        }
        Path(args.json).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="a folder or a catalogue name")
    add("--dtype", choices=("fp32", "bf16"), default="bf16")
    add("--mode", choices=("fast", "invariant"), default="invariant")
    add("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), help="the first is compared with")
    add("--context", type=int, default=1024, help="prompt tokens of every request")
    add("--requests", type=int, default=4, help="requests that decode side by side")
    add("--new-tokens", type=int, default=16)
    add("--rounds", type=int, default=5)
    add("--threads", type=int, default=2)
    add("--quality-tokens", type=int, default=1024, help="tokens of held-out text to score (0: none)")
    add("--json", metavar="FILE", help="also write everything to FILE")
    return parser.parse_args(argv)


def _config(args: argparse.Namespace, form: str, **changes: Scalar) -> EngineConfig:
    values: dict[str, Scalar] = {
        "model": args.model,
        "dtype": args.dtype,
        "numerics.mode": args.mode,
        "kv_cache.format": form,
        # Only the first round computes the prompts: what is timed is decoding over their stored KV.
        "prefix_cache.enabled": True,
        "threads.count": args.threads,
        "scheduler.max_running": args.requests,
    }
    return from_flat(values | {path.replace("__", "."): value for path, value in changes.items()})


def _times(args: argparse.Namespace) -> tuple[dict[str, Cell], str]:
    prompts = _prompts(args)
    engines = {form: Engine(_config(args, form)) for form in args.formats}
    try:
        cells = {
            form: Cell(int(str(engine.effective_config()["kv_cache.bytes_per_token"])), [], [])
            for form, engine in engines.items()
        }
        path = str(engines[args.formats[0]].effective_config()["kernel_path"])
        for number in range(args.rounds + 1):
            shift = number % len(args.formats)
            seen = {
                form: _tpot(engines[form], prompts, args)
                for form in (*args.formats[shift:], *args.formats[:shift])
            }
            if number == 0:  # the first one warms up
                continue
            for form, tpot in seen.items():
                cells[form].tpot_ms.append(tpot)
                cells[form].ratios.append(tpot / seen[args.formats[0]])
            print(f"round {number}/{args.rounds}", file=sys.stderr)
    finally:
        for engine in engines.values():
            engine.close()
    return cells, path


def _prompts(args: argparse.Namespace) -> list[list[int]]:
    """As many texts of `context` tokens, each starting at another place."""
    ids = Tokenizer(catalogue.resolve(args.model)).encode(held_out_text())
    if len(ids) < args.context + args.requests:
        raise SystemExit(f"the text has {len(ids)} tokens; ask for a shorter --context")
    step = (len(ids) - args.context) // args.requests
    return [ids[i * step : i * step + args.context] for i in range(args.requests)]


def _tpot(engine: Engine, prompts: list[list[int]], args: argparse.Namespace) -> float:
    """Time between the tokens of the last request to start, when all of them decode side by side, in ms."""
    params = SamplingParams(max_tokens=args.new_tokens, ignore_eos=True)
    outputs = engine.generate(prompts, params, on_error="raise")
    first = max(output.token_times_ns[0] for output in outputs)
    last = max(output.token_times_ns[-1] for output in outputs)
    return float((last - first) / 1e6 / (args.new_tokens - 1))


def _quality(args: argparse.Namespace, form: str) -> dict[str, Any]:
    tokenizer = Tokenizer(catalogue.resolve(args.model))
    sequences = windows(tokenizer.encode(held_out_text()), WINDOW, args.quality_tokens)
    reference = _config(args, "fp32", dtype="fp32")
    return compare(reference, _config(args, form), sequences).total.facts()


def _print(args: argparse.Namespace, path: str, cells: dict[str, Cell]) -> None:
    base = cells[args.formats[0]]
    print(
        f"{args.model}, {args.dtype}, {path}; {args.requests} requests of {args.context} tokens decode "
        f"{args.new_tokens} each, {args.rounds} rounds, {args.threads} threads"
    )
    print("| KV format | bytes a token | of the first | TPOT ms | TPOT ratio (least, greatest) |")
    print("|---|---|---|---|---|")
    for form, cell in cells.items():
        ratio = f"{statistics.median(cell.ratios):.3f} ({min(cell.ratios):.3f}, {max(cell.ratios):.3f})"
        share = cell.bytes_per_token / base.bytes_per_token
        print(
            f"| {form} | {cell.bytes_per_token} | {share:.3f} | {statistics.median(cell.tpot_ms):.2f} | {ratio} |"
        )
    if base.quality is None:
        return
    print(f"\nagainst fp32 with fp32 KV, {base.quality['positions']} predictions in windows of {WINDOW}:\n")
    print("| KV format | KL mean | KL p99 | top-1 | max d logit | perplexity ratio | first divergence |")
    print("|---|---|---|---|---|---|---|")
    for form, cell in cells.items():
        q = cell.quality or {}
        first = q["first_divergence"]
        where = "none" if first is None else f"{first[0]}:{first[1]}"
        print(
            f"| {form} | {q['kl_mean']:.2e} | {q['kl_p99']:.2e} | {100 * q['top1_agreement']:.2f} % "
            f"| {q['max_dlogit']:.3f} | {q['perplexity_ratio']:.5f} | {where} |"
        )


if __name__ == "__main__":
    sys.exit(main())
