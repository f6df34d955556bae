"""The `intaglio` command. Standard output carries the generated text and nothing else."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from intaglio import __version__, cache_commands, roofline_command
from intaglio.compute import resident
from intaglio.compute.native import build
from intaglio.config import EngineConfig, from_flat, parse_overrides
from intaglio.engine import Engine
from intaglio.errors import (
    EmptyPromptError,
    IntaglioError,
    PromptEncodingError,
    RequestError,
    SamplingParamsError,
)
from intaglio.intake.request import Prompt, SamplingParams, TokenEvent
from intaglio.quality import command as quality
from intaglio.serve import command as serving

EXIT_OK = 0
EXIT_INPUT = 2
EXIT_EXECUTION = 4
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141

_GENERATE_EXAMPLES = """\
examples:
  intaglio generate --prompt "Once upon a time" --max-tokens 40
  intaglio generate --model smollm2-135m --chat --prompt "What is the capital of France?" --stats dtype=fp32
  intaglio generate --model ./my-llama --prompt "2, 3, 5," --temperature 0.8 --top-p 0.9 --seed 7 dtype=fp32
  intaglio generate --prompt "Once" --max-tokens 20 kv_cache.enabled=false numerics.mode=fast
  cat question.txt | intaglio generate --model smollm2-135m --chat --prompt - --stop "\\n\\n"
"""


class _OutputError(Exception):
    """Standard output takes no more text: a full disk, a closed descriptor."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0; 2 for bad input, 4 for a failure while computing, 130 when interrupted."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    # argparse hands back overrides that stand behind an option; anything else is a mistake.
    unknown = [token for token in rest if token.startswith("-") or "=" not in token]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = args.func(args, [*args.overrides, *rest])
        return code
    except IntaglioError as error:
        print(f"intaglio: error: {_one_line(str(error))}", file=sys.stderr)
        return EXIT_INPUT
    except BrokenPipeError:
        _silence(sys.stdout)
        return EXIT_PIPE
    except _OutputError as error:
        _silence(sys.stdout)
        print(f"intaglio: error: cannot write the text: {error}", file=sys.stderr)
        return EXIT_EXECUTION
    except KeyboardInterrupt:
        print("intaglio: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="intaglio", description="An LLM inference engine that can be checked."
    )
    parser.add_argument("--version", action="version", version=f"intaglio {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    generate = commands.add_parser(
        "generate",
        help="generate text from a prompt",
        description="Generate text from a prompt. The text alone goes to standard output, as it is made.",
        epilog=_GENERATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = generate.add_argument
    add("overrides", nargs="*", metavar="key=value", help="engine configuration, e.g. kv_cache.enabled=false")
    add("--model", metavar="M", help="a folder, a catalogue name or a hub id (default: tiny)")
    add("--prompt", required=True, metavar="P", help="the prompt; - reads standard input")
    add("--max-tokens", type=int, metavar="N", help="most tokens to generate (default: 128)")
    add("--chat", action="store_true", help="put the prompt into the model's chat template")
    add("--system", metavar="TEXT", help="system message of the chat")
    add("--stats", action="store_true", help="print times and token counts to standard error")
    _add_sampling(generate)
    generate.set_defaults(func=_generate)
    quality.register(commands)
    serving.register(commands)
    roofline_command.register(commands)
    cache_commands.register(commands)
    return parser


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling (default: greedy)")
    add = group.add_argument
    add("--greedy", action="store_true", help="always take the best token (temperature 0)")
    add("--temperature", type=float, metavar="T")
    add("--top-k", type=int, metavar="K", help="keep the K best tokens; 0 keeps all")
    add("--top-p", type=float, metavar="P", help="keep the best tokens up to probability P")
    add("--min-p", type=float, metavar="P", help="drop tokens below P times the best one's probability")
    add("--repetition-penalty", type=float, metavar="R", help="above 1 discourages tokens already seen")
    add("--seed", type=int, metavar="S", help="same seed, same text")
    add("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    add("--stop-token-id", action="append", type=int, metavar="ID", help="end at this token; may be repeated")
    add("--ignore-eos", action="store_true", help="go on after the model's end token")


def _generate(args: argparse.Namespace, overrides: list[str]) -> int:
    if sys.stdout is None:
        raise _OutputError("standard output is closed")
    config = _config(args.model, overrides)
    params = _sampling_params(args)
    if args.system is not None and not args.chat:
        raise RequestError("--system needs --chat; add it, or leave --system out", field="system")
    text = _prompt_text(args.prompt)
    if config.device == "cpu" and config.numerics.mode != "fast" and build.is_pending():
        print("intaglio: note: compiling the native kernels, once for this machine", file=sys.stderr)
    with Engine(config) as engine:
        prompt: Prompt = _chat(engine, text, args.system) if args.chat else text
        stats = _Stats()
        stream = engine.stream(prompt, params)
        if lost := engine.tokenizer.unencodable(text + (args.system or "")):
            note = f"the model has no token for {lost!a}; it reads the prompt without"
            print(f"intaglio: note: {note}", file=sys.stderr)
        _show(stream, sys.stdout, stats)
        _report_notes(engine, sys.stderr)
        if args.stats:
            print(stats.line(engine, params), file=sys.stderr)
    if stats.failure:
        print(f"intaglio: error: {_one_line(stats.failure)}", file=sys.stderr)
        return EXIT_EXECUTION
    return EXIT_OK


def _config(model: str | None, overrides: Iterable[str]) -> EngineConfig:
    """One request at a time is all there will be, and the KV cache need hold no more than that."""
    alone = from_flat({"scheduler.max_running": 1})
    return parse_overrides([*([] if model is None else [f"model={model}"]), *overrides], alone)


def _sampling_params(args: argparse.Namespace) -> SamplingParams:
    if args.greedy and args.temperature:
        raise SamplingParamsError("--greedy contradicts --temperature; leave one out", field="temperature")
    given = {
        "max_tokens": args.max_tokens,
        "temperature": 0.0 if args.greedy else args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "min_p": args.min_p,
        "repetition_penalty": args.repetition_penalty,
        "seed": args.seed,
        "stop": None if args.stop is None else tuple(args.stop),
        "stop_token_ids": None if args.stop_token_id is None else tuple(args.stop_token_id),
    }
    values = {name: value for name, value in given.items() if value is not None}
    return SamplingParams(**values, ignore_eos=args.ignore_eos)


def _prompt_text(given: str) -> str:
    """The prompt, or standard input without the newline that ends its last line."""
    if given != "-":
        return given
    if sys.stdin is None:
        raise RequestError("standard input is closed; give --prompt a text", field="prompt")
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise PromptEncodingError(
            f"standard input is not UTF-8 at byte {error.start}", field="prompt"
        ) from None


def _chat(engine: Engine, text: str, system: str | None) -> list[int]:
    if not text:
        raise EmptyPromptError("the prompt is empty; give at least one character", field="prompt")
    messages = [] if system is None else [{"role": "system", "content": system}]
    ids: list[int] = engine.tokenizer.apply_chat_template([*messages, {"role": "user", "content": text}])
    return ids


@dataclass(slots=True)
class _Stats:
    """What the user may want to know of the one request."""

    times: list[int] = field(default_factory=list)
    finish_reason: str = ""
    failure: str = ""
    request_id: str = ""

    def take(self, event: TokenEvent) -> None:
        if event.token_id is not None:
            self.times.append(event.time_ns)
        self.request_id = event.request_id
        self.finish_reason = event.finish_reason or ""
        self.failure = str(event.error) if event.error else ""

    def line(self, engine: Engine, params: SamplingParams) -> str:
        """One line: tokens, time to first token, time per output token (not defined below two), why it ended, and the
        most memory that the process took."""
        output = engine.output(self.request_id)
        parts = [f"prompt {len(output.prompt_token_ids)} tokens", f"output {len(output.token_ids)} tokens"]
        if self.times:
            parts.append(f"TTFT {(self.times[0] - output.enqueued_ns) / 1e6:.1f} ms")
        if len(self.times) > 1:
            per_token = (self.times[-1] - self.times[0]) / (len(self.times) - 1)
            parts.append(f"TPOT {per_token / 1e6:.1f} ms")
        parts.append(f"computed {output.tokens_computed} tokens")
        parts.append(f"finish {output.finish_reason}")
        if params.temperature > 0:
            parts.append(f"seed {output.seed}")
        if (peak := resident.peak()) is not None:
            parts.append(f"peak memory {peak / 2**20:.0f} MiB")
        return ", ".join(parts)


def _show(events: Iterable[TokenEvent], out: TextIO, stats: _Stats) -> None:
    """Write each piece of text as soon as it is there; on a terminal end with a newline."""
    if hasattr(out, "reconfigure"):
        out.reconfigure(encoding="utf-8", newline="")
    last = ""
    for event in events:
        stats.take(event)
        if event.text:
            last = event.text
            _write(event.text, out)
    if out.isatty() and not last.endswith("\n"):
        _write("\n", out)


def _write(text: str, out: TextIO) -> None:
    try:
        out.write(text)
        out.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _OutputError(error.strerror or str(error)) from error


def _silence(out: TextIO | None) -> None:
    """Nobody reads `out` any more. Python would complain again when it flushes at exit."""
    if out is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def _report_notes(engine: Engine, out: TextIO) -> None:
    """Tell of what went another way than the user asked for."""
    for event in engine.drain_events():
        if event["kind"] in ("fallback", "kv_exhausted", "recompute_budget_exhausted"):
            details = ", ".join(f"{k}={v}" for k, v in event.items() if k not in ("time_ns", "kind"))
            print(f"intaglio: note: {event['kind']}: {details}", file=out)


def _one_line(text: str) -> str:
    return " ".join(text.split())
