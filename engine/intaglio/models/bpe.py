"""A small byte-level BPE tokenizer, trained on given texts (the `tokenizers` library does the counting)."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from intaglio.errors import ModelError

BYTES = 256


def train_bpe(texts: Sequence[str], vocab_size: int, special_tokens: Sequence[str]) -> tokenizers.Tokenizer:
    """A byte-level BPE of exactly `vocab_size` tokens: the special ones first, then the bytes, then merges.

    The first special token is put before every prompt. Every text can be encoded, since every byte is a
    token. The same texts give the same tokenizer. Raises ModelError when the texts hold too few merges.
    """
    if vocab_size < BYTES + len(special_tokens):
        raise ModelError(f"a vocabulary of {vocab_size} cannot hold the {BYTES} bytes; take a larger one")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ModelError(
            f"the texts give {tokenizer.get_vocab_size()} tokens instead of {vocab_size}; add text"
        )
    first = special_tokens[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A",
        pair=f"{first} $A {first} $B",
        special_tokens=[(first, tokenizer.token_to_id(first))],
    )
    return tokenizer
