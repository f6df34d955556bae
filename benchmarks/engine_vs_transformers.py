"""Intaglio against transformers' `generate` on one prompt, batch 1, greedy, in the same run.

    python benchmarks/engine_vs_transformers.py --dtype bf16 --prompt-tokens 512 --new-tokens 128 --repeats 3
    python benchmarks/engine_vs_transformers.py --no-cache --prompt-tokens 128 --new-tokens 64

Both engines run in fresh processes, one after the other and alternately, with the same threads, dtype and prompt; each
warms up once and is then measured once. Ratios below 1 mean that intaglio took less. Other load on the machine
distorts both sides, and active waiting most of all: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SIDES = ("intaglio", "transformers")
WARM_TOKENS = 8
# (key, title, unit, digits)
ROWS = (
    ("ttft_ms", "time to first token", "ms", 1),
    ("tpot_ms", "time per output token", "ms", 2),
    ("total_ms", "whole request", "ms", 0),
    ("load_ms", "loading", "ms", 0),
    ("peak_rss_mib", "peak resident set", "MiB", 0),
)


def main(argv: list[str] | None = None) -> int:
    """Run the comparison, or with --side one measurement of one side. Returns the exit status."""
    args = _arguments(argv)
    if args.side:
        print(json.dumps(_measure(args.side, json.loads(sys.stdin.read()))))
        return 0
    task = _task(args)
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for repeat in range(args.repeats):
        for side in SIDES:
            results[side].append(_child(side, task, args))
            _progress(repeat, args.repeats, side, results[side][-1])
    summary = _summary(task, results)
    _print_table(summary)
    if args.json:
        Path(args.json).write_text(json.dumps(summary | {"runs": results}, indent=1), encoding="utf-8")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="a folder or a catalogue name")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--wait-policy", choices=("active", "passive"), default="active")
    parser.add_argument("--no-cache", action="store_true", help="recompute the whole prefix for every token")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds allowed to one measurement")
    parser.add_argument("--json", metavar="FILE", help="also write every run and the summary to FILE")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _task(args: argparse.Namespace) -> dict[str, Any]:
    """What both sides are told: plain values."""
    from pydoc_data import topics

    from intaglio.intake.tokenizer import Tokenizer
    from intaglio.models import catalogue

    folder = catalogue.resolve(args.model)
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    ids = Tokenizer(folder).encode(text[: 40 * args.prompt_tokens])[: args.prompt_tokens]
    if len(ids) < args.prompt_tokens:
        raise SystemExit(f"the text gives only {len(ids)} tokens; ask for fewer --prompt-tokens")
    return {
        "model": str(folder),
        "model_name": args.model,
        "dtype": args.dtype,
        "prompt": ids,
        "new_tokens": args.new_tokens,
        "threads": args.threads,
        "wait_policy": args.wait_policy,
        "cache": not args.no_cache,
    }


def _child(side: str, task: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """One measurement in a process of its own, whose threads are set before torch loads."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(args.threads),
        "OMP_WAIT_POLICY": args.wait_policy,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(
        [sys.executable, __file__, "--side", side],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        env=environment,
        timeout=args.timeout,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"the {side} side failed:\n{done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _measure(side: str, task: dict[str, Any]) -> dict[str, Any]:
    began = time.perf_counter_ns()
    run = _intaglio(task) if side == "intaglio" else _transformers(task)
    loaded = time.perf_counter_ns()
    run(min(WARM_TOKENS, task["new_tokens"]))
    start, stamps, tokens, versions = run(task["new_tokens"])
    count = len(stamps)
    return {
        "ttft_ms": (stamps[0] - start) / 1e6,
        "tpot_ms": (stamps[-1] - stamps[0]) / (count - 1) / 1e6 if count > 1 else None,
        "total_ms": (stamps[-1] - start) / 1e6,
        "load_ms": (loaded - began) / 1e6,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "tokens": tokens,
        "versions": versions,
    }


def _intaglio(task: dict[str, Any]) -> Any:
    from intaglio.config import from_flat
    from intaglio.engine import Engine
    from intaglio.intake.request import SamplingParams

    engine = Engine(
        from_flat(
            {
                "model": task["model"],
                "dtype": task["dtype"],
                # The library path: what both sides then share is torch.
                "numerics.mode": "fast",
                "kv_cache.enabled": task["cache"],
                "threads.count": task["threads"],
                "threads.wait_policy": task["wait_policy"],
                "scheduler.max_running": 1,
            }
        )
    )

    def run(new_tokens: int) -> tuple[int, list[int], list[int], dict[str, str]]:
        params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
        start = time.perf_counter_ns()
        output = engine.generate([task["prompt"]], params, on_error="raise")[0]
        path = str(engine.effective_config()["kernel_path"]) if new_tokens > WARM_TOKENS else ""
        return start, output.token_times_ns, output.token_ids, {"kernel path": path}

    return run


def _transformers(task: dict[str, Any]) -> Any:
    import torch
    import transformers

    torch.set_num_threads(task["threads"])
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[task["dtype"]]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        task["model"], dtype=kind, attn_implementation="sdpa"
    ).eval()
    model.generation_config.eos_token_id = None  # both sides write every token
    model.generation_config.pad_token_id = 0
    prompt = torch.tensor([task["prompt"]])

    class Stamps:
        """Stamps every token; the first call carries the prompt."""

        def __init__(self) -> None:
            self.at: list[int] = []

        def put(self, _: object) -> None:
            self.at.append(time.perf_counter_ns())

        def end(self) -> None: ...

    def run(new_tokens: int) -> tuple[int, list[int], list[int], dict[str, str]]:
        stamps = Stamps()
        start = time.perf_counter_ns()
        with torch.inference_mode():
            ids = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),  # else ids equal to the padding's would be hidden
                max_new_tokens=new_tokens,
                do_sample=False,
                use_cache=task["cache"],
                streamer=stamps,
            )
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        return start, stamps.at[1:], ids[0, prompt.shape[1] :].tolist(), versions

    return run


def _summary(task: dict[str, Any], results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    medians: dict[str, dict[str, float | None]] = {}
    for key, *_ in ROWS:
        sides: dict[str, float | None] = {}
        for side in SIDES:
            values = [run[key] for run in results[side] if run[key] is not None]
            sides[side] = statistics.median(values) if values else None
        ours, theirs = sides["intaglio"], sides["transformers"]
        medians[key] = sides | {"ratio": ours / theirs if ours and theirs else None}
    ours, theirs = (results[side][0]["tokens"] for side in SIDES)
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), len(ours))
    versions = {"python": platform.python_version()}
    for side in SIDES:
        versions |= results[side][0]["versions"]
    return {
        "task": {key: value for key, value in task.items() if key not in ("prompt", "model")},
        "prompt_tokens": len(task["prompt"]),
        "medians": medians,
        "equal_leading_tokens": same,
        "tokens": len(ours),
        "versions": versions,
        "load_average": os.getloadavg()[0],
    }


def _progress(repeat: int, repeats: int, side: str, run: dict[str, Any]) -> None:
    tpot = "-" if run["tpot_ms"] is None else f"{run['tpot_ms']:.2f}"
    print(f"{repeat + 1}/{repeats} {side:12} TTFT {run['ttft_ms']:.1f} ms, TPOT {tpot} ms", file=sys.stderr)


def _print_table(summary: dict[str, Any]) -> None:
    task = summary["task"]
    cache = "KV cache on" if task["cache"] else "no KV cache"
    print(
        f"{task['model_name']}, {task['dtype']}, {summary['prompt_tokens']} -> {task['new_tokens']} tokens, {cache}, "
        f"{task['threads']} threads ({task['wait_policy']} waiting), load average {summary['load_average']:.2f}"
    )
    print(f"{'median':24} {'intaglio':>12} {'transformers':>14} {'ratio':>8}")
    for key, title, unit, digits in ROWS:
        row = summary["medians"][key]
        cells = ["-" if row[side] is None else f"{row[side]:.{digits}f} {unit}" for side in SIDES]
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
        print(f"{title:24} {cells[0]:>12} {cells[1]:>14} {ratio:>8}")
    print(f"equal leading tokens: {summary['equal_leading_tokens']} of {summary['tokens']}")
    print(", ".join(f"{name} {value}" for name, value in summary["versions"].items()))


if __name__ == "__main__":
    sys.exit(main())
