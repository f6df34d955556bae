"""`intaglio simulate-cache` and `intaglio explain-miss`: what a prefix cache would hit, and why it did not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from intaglio.config import EngineConfig, parse_overrides
from intaglio.errors import ConfigError, PromptEncodingError, RequestError
from intaglio.intake.explain_miss import Asked, Explanation, explain
from intaglio.loading import identity_of
from intaglio.models import catalogue
from intaglio.state.cache_replay import ReplayResult, read_trace, replay

_SIMULATE_EXAMPLES = """\
The trace is one JSON object a line with `hash_ids`, as published for Mooncake. No model is loaded: the engine's
own block pool and prefix cache serve the requests in order.

examples:
  intaglio simulate-cache conversation_trace.jsonl --blocks 10000
  intaglio simulate-cache conversation_trace.jsonl --blocks all --rows 2000 --json
"""


_EXPLAIN_EXAMPLES = """\
A and B are prompts, or files with one (a .json file may hold a list of token ids). Overrides apply to both; those
of --second to B alone, as when two deployments are compared. The model is not loaded, only its tokenizer.

examples:
  intaglio explain-miss "Once upon a time" "Once upon  a time"
  intaglio explain-miss first.txt second.txt --model smollm2-135m --chat
  intaglio explain-miss doc.txt doc.txt --chat --system-b "Answer briefly." --model smollm2-135m
  intaglio explain-miss a.txt a.txt --tenant-a alice --tenant-b bob --second dtype=fp32 --json
"""


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add both commands to a command line; they set `func(args, overrides) -> exit code`."""
    _register_simulate(commands)
    _register_explain(commands)


def _register_simulate(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "simulate-cache",
        help="replay a trace through the prefix cache, without a model",
        description="Replay a trace through the engine's prefix cache, without a model.",
        epilog=_SIMULATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("trace", type=Path, metavar="TRACE", help="a trace in Mooncake's format (JSON lines)")
    add("--blocks", type=_capacity, required=True, metavar="N", help="blocks that fit, or 'all'")
    add("--rows", type=_count, metavar="N", help="only the first N requests")
    add("--json", action="store_true", help="print one JSON object instead of lines")
    parser.set_defaults(func=_simulate, overrides=[])


def _register_explain(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "explain-miss",
        help="why a prompt does not hit what another left in the prefix cache",
        description="Why prompt B does not hit what prompt A left in the prefix cache.",
        epilog=_EXPLAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("first", metavar="A", help="the prompt that was asked before, or a file")
    add("second", metavar="B", help="the prompt that should have hit it, or a file")
    add("overrides", nargs="*", metavar="key=value", help="engine configuration of both")
    add("--model", metavar="M", help="a folder, a catalogue name or a hub id (default: tiny)")
    add("--chat", action="store_true", help="put both into the model's chat template")
    for name in ("a", "b"):
        add(f"--chat-{name}", action="store_true", help=f"put {name.upper()} into the model's chat template")
        add(f"--system-{name}", metavar="TEXT", help=f"system message of {name.upper()} (with the template)")
        add(f"--tenant-{name}", metavar="T", default="", help=f"whose request {name.upper()} is")
    add(
        "--second",
        dest="second_overrides",
        action="append",
        default=[],
        metavar="K=V",
        help="configuration of B alone",
    )
    add("--json", action="store_true", help="print one JSON object instead of lines")
    parser.set_defaults(func=_explain)


def _explain(args: argparse.Namespace, overrides: list[str]) -> int:
    common = [*([] if args.model is None else [f"model={args.model}"]), *overrides]
    own = _override(common, args.second_overrides)
    # Where both leave the choice to the machine it is the same one, whatever it is.
    settle = len({parse_overrides(tokens).numerics.mode for tokens in (common, own)}) > 1
    first = _asked(args.first, common, settle, args.chat or args.chat_a, args.system_a, args.tenant_a)
    second = _asked(args.second, own, settle, args.chat or args.chat_b, args.system_b, args.tenant_b)
    explanation = explain(first, second)
    print(json.dumps(explanation.to_dict()) if args.json else "\n".join(_told(explanation)))
    return 0


def _override(common: list[str], own: list[str]) -> list[str]:
    paths = {token.partition("=")[0] for token in own}
    return [token for token in common if token.partition("=")[0] not in paths] + own


def _asked(
    given: str, overrides: list[str], settle: bool, chat: bool, system: str | None, tenant: str
) -> Asked:
    """The request as the cache would see it; settle: whether to find out what mode "auto" is here. Raises an IntaglioError that names what cannot be used."""
    from intaglio.intake.tokenizer import Tokenizer

    config = parse_overrides(overrides)
    folder = catalogue.resolve(config.model)
    tokenizer = Tokenizer(folder)
    identity = identity_of(config, catalogue.fingerprint(folder), *_resolved(config, settle))
    # Both are taken to have a prefix cache, which is not on by default, unless it was switched off.
    caches = config.prefix_cache.enabled or not any(t.startswith("prefix_cache.enabled=") for t in overrides)
    prompt = _read(given)
    if isinstance(prompt, tuple):
        if chat or system is not None:
            raise RequestError("a prompt of token ids takes no chat template", field="prompt")
        known = tokenizer.known_tokens
        if wrong := [token for token in prompt if not 0 <= token < known]:
            raise RequestError(f"{given}: token {wrong[0]}; ids go from 0 to {known - 1}", field="prompt")
        return Asked(prompt, identity, tokenizer, tenant, caches=caches)
    if system is not None and not chat:
        raise RequestError("a system message needs the chat template; add --chat", field="system")
    if not chat:
        return Asked(tuple(tokenizer.encode(prompt)), identity, tokenizer, tenant, prompt, caches)
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": prompt})
    return Asked(tuple(tokenizer.apply_chat_template(messages)), identity, tokenizer, tenant, prompt, caches)


def _resolved(config: EngineConfig, settle: bool) -> tuple[str, str]:
    """KV format and numerics mode that the configuration stands for, as an engine would report them."""
    form, mode = config.kv_cache.format, config.numerics.mode
    if settle and mode == "auto":
        from intaglio.compute.native.status import available

        mode = "invariant" if config.device == "cpu" and available() else "fast"
    return (config.dtype if form == "auto" else form), mode


def _read(given: str) -> str | tuple[int, ...]:
    """A prompt, or the contents of the file it names."""
    path = Path(given)
    try:
        if not path.is_file():
            return given
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # a text too long or too odd for a path is no path
        if isinstance(error, UnicodeDecodeError):
            raise PromptEncodingError(f"{given} is not UTF-8: {error}", field="prompt") from error
        return given
    if path.suffix != ".json":
        return text
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{given} is no JSON: {error}", field="prompt") from error
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise RequestError(f"{given} must hold a list of token ids", field="prompt")
    return tuple(ids)


def _told(explanation: Explanation) -> Iterator[str]:
    e = explanation
    yield f"tokens     {e.tokens[0]:,} (A) and {e.tokens[1]:,} (B)"
    yield f"in common  {e.common_tokens:,} leading tokens, of which B hits {e.hit_tokens:,}"
    if e.token is not None:
        yield f"differ at  token {e.token}: id {e.ids[0]} (A) and {e.ids[1]} (B)"
        yield f"  before   {e.before!r}"
        yield f"  A        {e.first!r}"
        yield f"  B        {e.second!r}"
    for cause in e.causes:
        yield f"cause      {cause.kind}: {cause.detail}"
    if not e.causes:
        yield "cause      none: everything that both have in common is hit"


def _simulate(args: argparse.Namespace, overrides: list[str]) -> int:
    if overrides:
        raise ConfigError(f"simulate-cache runs no engine: leave {overrides[0]} out", field=overrides[0])
    result = replay(read_trace(args.trace, args.rows), args.blocks)
    print(json.dumps(result.to_dict()) if args.json else _lines(result))
    return 0


def _lines(result: ReplayResult) -> str:
    rows = (
        ("blocks", f"{result.blocks:,}"),
        ("requests", f"{result.requests:,}"),
        ("references", f"{result.references:,} ({result.unique:,} different)"),
        ("hits", f"{result.hits:,}"),
        ("hit_ratio", f"{result.hit_ratio:.4f}"),
        ("mean_request_ratio", f"{result.mean_request_ratio:.4f}"),
        ("evictions", f"{result.evictions:,}"),
    )
    return "\n".join(f"{name:<20}{value}" for name, value in rows)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}': give a whole number from 1")
    return int(text)


def _capacity(text: str) -> int | None:
    """A number of blocks, or None for all."""
    return None if text == "all" else _count(text)
