"""`intaglio quality`: how far a faster or smaller configuration's predictions stray from a reference's."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from intaglio.config import EngineConfig, parse_overrides
from intaglio.errors import ConfigError
from intaglio.models import catalogue
from intaglio.quality.text import held_out_text, read_text, windows

REFERENCE = "dtype=fp32"
TOKENS = 1024
WINDOW = 256

_EXAMPLES = """\
Both configurations read the same text and predict each token from those before it. Reported are the
Kullback-Leibler divergence from the reference (nats), how often the best token agrees, the largest difference
of a logit, and the perplexity of the text under both. Without --text it is Python's own documentation, in parts
that no study uses as prompts.

examples:
  intaglio quality --model smollm2-135m --candidate weights.format=q8_0
  intaglio quality --model smollm2-135m --reference dtype=fp32 --candidate dtype=bf16 --tokens 4096
  intaglio quality --candidate kv_cache.format=bf16 --reference dtype=fp32,kv_cache.format=fp32 dtype=fp32
  intaglio quality --model ./my-llama --candidate weights.format=q4_1 --text book.txt --json
"""


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `quality` to a command line; it sets `func(args, overrides) -> exit code`."""
    parser = commands.add_parser(
        "quality",
        help="compare a configuration's predictions with a reference's",
        description="Compare a configuration's predictions with a reference's on the same text.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "overrides", nargs="*", metavar="key=value", help="engine configuration of both, e.g. threads.count=2"
    )
    add("--model", metavar="M", help="a folder, a catalogue name or a hub id (default: tiny)")
    add("--reference", default=REFERENCE, metavar="K=V,...", help=f"what to trust (default: {REFERENCE})")
    add("--candidate", required=True, metavar="K=V,...", help="what to judge, e.g. weights.format=q8_0")
    add(
        "--text",
        type=Path,
        metavar="FILE",
        help="text to read (default: unused parts of Python's documentation)",
    )
    add("--tokens", type=int, default=TOKENS, metavar="N", help=f"most tokens to read (default: {TOKENS})")
    add("--window", type=int, default=WINDOW, metavar="N", help=f"tokens of one sequence (default: {WINDOW})")
    add("--json", action="store_true", help="print one JSON object")
    add("--quiet", action="store_true", help="show no progress")
    parser.set_defaults(func=_quality)


def _quality(args: argparse.Namespace, overrides: list[str]) -> int:
    common = parse_overrides([*([] if args.model is None else [f"model={args.model}"]), *overrides])
    reference, candidate = _side(args.reference, common), _side(args.candidate, common)
    sequences = _sequences(args, reference)
    from intaglio.quality.comparison import compare

    shown = Progress(
        TextColumn("reading"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True, quiet=args.quiet),
        transient=True,
    )
    with shown:
        task = shown.add_task("", total=None)
        found = compare(
            reference,
            candidate,
            sequences,
            tell=lambda done, total: shown.update(task, completed=done, total=total),
        )
    facts = {
        **found.total.facts(),
        "sequences": len(sequences),
        "reference": {key: found.reference[key] for key in _SHOWN},
        "candidate": {key: found.candidate[key] for key in _SHOWN},
    }
    print(json.dumps(facts, indent=1) if args.json else "\n".join(_lines(facts)))
    return 0


_SHOWN = (
    "model",
    "dtype",
    "numerics.mode",
    "weights.format",
    "kv_cache.format",
    "kernel_path",
    "model.weight_bytes",
    "kv_cache.bytes_per_token",
)


def _side(text: str, common: EngineConfig) -> EngineConfig:
    return parse_overrides([token for token in text.split(",") if token], common)


def _sequences(args: argparse.Namespace, reference: EngineConfig) -> list[tuple[int, ...]]:
    """What both read, in the reference's tokens."""
    for name, least in (("tokens", 2), ("window", 2)):
        if getattr(args, name) < least:
            raise ConfigError(f"--{name} must be at least {least}, not {getattr(args, name)}", field=name)
    text = held_out_text() if args.text is None else read_text(args.text)
    from intaglio.intake.tokenizer import Tokenizer

    tokenizer = Tokenizer(catalogue.resolve(reference.model))
    head = [tokenizer.bos_token_id] if tokenizer.adds_bos and tokenizer.bos_token_id is not None else []
    ids = tokenizer.encode(text, add_bos=False)
    if len(ids) < args.tokens and args.tokens != TOKENS:
        print(f"intaglio: note: the text has {len(ids)} tokens, fewer than {args.tokens}", file=sys.stderr)
    return windows(ids, args.window, args.tokens, head)


def _lines(facts: dict[str, Any]) -> list[str]:
    """The report for people."""
    rows = []
    for side in ("reference", "candidate"):
        own = facts[side]
        rows.append(
            f"{side}   {own['kernel_path']}, weights {own['model.weight_bytes'] / 2**20:.1f} MiB, "
            f"KV {own['kv_cache.format']} {own['kv_cache.bytes_per_token']} bytes a token"
        )
    first = facts["first_divergence"]
    where = "nowhere" if first is None else f"sequence {first[0]}, token {first[1]}"
    return [
        *rows,
        f"positions           {facts['positions']} in {facts['sequences']} sequences",
        f"KL mean             {facts['kl_mean']:.3e} nats",
        f"KL p99              {facts['kl_p99']:.3e} nats",
        f"top-1 agreement     {100 * facts['top1_agreement']:.2f} %",
        f"max |d logit|       {facts['max_dlogit']:.3e}",
        f"perplexity          {facts['reference_perplexity']:.4f} -> {facts['candidate_perplexity']:.4f} "
        f"(x{facts['perplexity_ratio']:.5f})",
        f"first divergence    {where}",
    ]
