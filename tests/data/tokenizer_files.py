# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers trained in the test, so that none has to be shipped."""

import io
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = [
    "the quick brown fox jumps over the lazy dog and runs away from the other dogs",
    "a tokenizer splits text into pieces; pieces become numbers, numbers become vectors",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))",
    "naïve café, 漢字 and 🎉 are written in UTF-8",
] * 5


def byte_level_bpe(special: list[str], vocab_size: int = 400) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def sentencepiece_model(path: Path, kind: str) -> Path:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        vocab_size=400,
        model_type=kind,
        byte_fallback=True,
        character_coverage=1.0,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    return path
