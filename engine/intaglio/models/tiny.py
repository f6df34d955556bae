"""Training the tiny model: a Llama of under a million parameters on text that comes with Python.

The text is the interpreter's own documentation topics (`pydoc_data.topics`), so that any machine can train
the model again. Weights, tokenizer and chat template come out as a Hugging Face folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from intaglio.errors import ModelError
from intaglio.models import catalogue
from intaglio.models.bpe import train_bpe

if TYPE_CHECKING:
    import tokenizers
    import torch

BEGIN, END, TURN = "<|begin|>", "<|end|>", "<|turn|>"
VOCABULARY = 512
CONTEXT = 512
_HELD_OUT_EVERY = 10

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|turn|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|end|>\n' if message['role'] == 'assistant' else '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|turn|>assistant\n' }}{% endif %}"
)

ARCHITECTURE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train. A step is `batch` windows of the model's whole context."""

    seed: int = 0
    steps: int = 1500
    batch: int = 4
    peak_rate: float = 4e-3
    warmup: int = 60
    weight_decay: float = 0.05
    threads: int = 1


def train_tiny(
    folder: Path, *, seed: int = 0, recipe: Recipe | None = None, progress: bool = True
) -> dict[str, Any]:
    """Train the tiny model into `folder` and return what is written to its training.json (losses in nats).

    The same seed, thread count, text and torch on the same machine give the same bytes. Raises ModelError
    when `folder` already holds something.
    """
    recipe = recipe or Recipe(seed=seed)
    if folder.exists() and any(folder.iterdir()):
        raise ModelError(f"{folder} is not empty; give another folder, or remove it first")
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(recipe.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            return _train(folder, recipe, Console(stderr=True, quiet=not progress))
    finally:
        torch.set_num_threads(threads)


def documentation() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(training, held-out) topics as (title, text), in title order; every tenth is held out."""
    from pydoc_data.topics import topics

    rows = sorted(topics.items())
    held = [row for index, row in enumerate(rows) if index % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1]
    return [row for row in rows if row not in held], held


def _train(folder: Path, recipe: Recipe, console: Console) -> dict[str, Any]:
    import torch

    started = time.monotonic()
    train, held = documentation()
    tokenizer = train_bpe([text for _, text in train], VOCABULARY, (BEGIN, END, TURN))
    tokens = torch.tensor(_token_stream(tokenizer, train, chat=True))
    held_tokens = torch.tensor(_token_stream(tokenizer, held, chat=False))
    model = _new_model()
    loss = _optimise(model, tokens, recipe, console)
    _round_to_bfloat16(model)
    held_loss = _mean_loss(model, held_tokens)
    held_bytes = sum(len(text.encode()) for _, text in held)
    report = {
        "schema": "intaglio-training/1",
        "recipe": asdict(recipe),
        "parameters": sum(p.numel() for p in model.parameters()),
        "text_sha256": hashlib.sha256("".join(t + x for t, x in train + held).encode()).hexdigest(),
        "text_bytes": sum(len(text.encode()) for _, text in train),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tokens_seen": recipe.steps * recipe.batch * CONTEXT,
        "train_loss": round(loss, 4),
        "held_out_loss": round(held_loss, 4),
        "held_out_bits_per_byte": round(held_loss * len(held_tokens) / math.log(2) / held_bytes, 4),
    }
    _write(folder, model, tokenizer, report)
    console.print(
        f"held-out loss {held_loss:.3f} nats a token, {report['held_out_bits_per_byte']:.3f} bits a byte; "
        f"{time.monotonic() - started:.0f} s"
    )
    return report


def _token_stream(tokenizer: tokenizers.Tokenizer, rows: list[tuple[str, str]], *, chat: bool) -> list[int]:
    """All documents one after another; with `chat` each also as the answer to its title."""
    ids: list[int] = []
    for title, text in rows:
        ids += tokenizer.encode(f"{BEGIN}{text}{END}", add_special_tokens=False).ids
        if chat:
            turns = f"{BEGIN}{TURN}user\n{title}\n{TURN}assistant\n{text}{END}"
            ids += tokenizer.encode(turns, add_special_tokens=False).ids
    return ids


def _new_model() -> torch.nn.Module:
    import transformers

    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**ARCHITECTURE))  # type: ignore[no-any-return]


def _optimise(model: torch.nn.Module, tokens: torch.Tensor, recipe: Recipe, console: Console) -> float:
    """Train in place; the mean loss of the last fiftieth of the steps."""
    import torch

    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=recipe.peak_rate, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(recipe.seed)
    losses: list[float] = []
    model.train()
    for step in _steps(recipe.steps, losses, console):
        for group in optimiser.param_groups:
            group["lr"] = _rate(step, recipe)
        starts = torch.randint(0, len(tokens) - CONTEXT, (recipe.batch,), generator=generator)
        window = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts.tolist()])
        loss = _loss(model, window)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    last = losses[-max(1, recipe.steps // 50) :]
    return sum(last) / len(last)


def _steps(count: int, losses: list[float], console: Console) -> Iterator[int]:
    """The step numbers, with a progress bar that shows the smoothed loss."""
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=console.quiet) as bar:
        task = bar.add_task("training", total=count, loss="-")
        for step in range(count):
            yield step
            recent = losses[-20:]
            bar.update(task, advance=1, loss=f"{sum(recent) / len(recent):.3f}")


def _rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then half a cosine down to a twentieth of the peak."""
    if step < recipe.warmup:
        return recipe.peak_rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.peak_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def _loss(model: torch.nn.Module, window: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats of predicting window[:, 1:] from window[:, :-1]."""
    import torch

    logits = model(input_ids=window[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


def _mean_loss(model: torch.nn.Module, tokens: torch.Tensor) -> float:
    """Mean loss over consecutive windows of the context, every token but the first predicted once."""
    import torch

    model.eval()
    total = 0.0
    with torch.inference_mode():
        for start in range(0, len(tokens) - 1, CONTEXT):
            window = tokens[start : start + CONTEXT + 1]
            total += _loss(model, window[None]).item() * (len(window) - 1)
    return total / max(1, len(tokens) - 1)


def _round_to_bfloat16(model: torch.nn.Module) -> None:
    """Round the weights to what is stored, so that the reported loss is that of the file."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).to(parameter.dtype))


def _write(
    folder: Path, model: torch.nn.Module, tokenizer: tokenizers.Tokenizer, report: dict[str, Any]
) -> None:
    import safetensors.torch
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: value.to(torch.bfloat16).contiguous()
        for name, value in sorted(model.state_dict().items())
        if name != "lm_head.weight"
    }
    safetensors.torch.save_file(weights, folder / catalogue.WEIGHTS, metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        **ARCHITECTURE,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / catalogue.WEIGHTS).chmod(0o644)
    report["weights_sha256"] = catalogue.sha256_file(folder / catalogue.WEIGHTS)
    documents = {
        catalogue.CONFIG: config,
        catalogue.GENERATION: {"bos_token_id": 0, "eos_token_id": 1},
        catalogue.TOKENIZER: json.loads(tokenizer.to_str()),
        catalogue.TOKENIZER_CONFIG: settings,
        "training.json": report,
    }
    for name, document in documents.items():
        text = json.dumps(document, ensure_ascii=False, indent=1)
        (folder / name).write_text(text + "\n", encoding="utf-8")
