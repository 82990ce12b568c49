# SPDX-License-Identifier: Apache-2.0
"""The part of tools/inspect.py that knows data sets."""

import argparse
import sys
from collections.abc import Sequence
from typing import get_args

from megatron_core.config.data import DataConfig, TokenizerType
from megatron_core.data.build_tokenizer import build_tokenizer
from megatron_core.data.describe import describe_dataset
from megatron_core.errors import UserError


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Flags; those of the tokenizer are training's."""
    parser = argparse.ArgumentParser(
        prog="tools/inspect.py", description="Say what a data set holds.", allow_abbrev=False
    )
    add = parser.add_argument
    add("prefix", help="data set, without .bin or .idx")
    add("--samples", type=int, default=3, help="documents to show the start of")
    add("--seq-length", type=int, default=2048, help="tokens in a training sample")
    add("--train-samples", type=int, help="samples that a plan would read")
    add("--split", default="1", help="share of training, as in training; default: all")
    add("--tokenizer-type", choices=get_args(TokenizerType), help="to show text, not ids")
    add("--tokenizer-model")
    add("--vocab-file")
    add("--merge-file")
    add("--vocab-size", type=int)
    return parser.parse_args([_dashed(word) for word in words])


def _dashed(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 2 not to be read."""
    arguments = parse_arguments(words)
    config = DataConfig(
        tokenizer_type=arguments.tokenizer_type,
        tokenizer_model=arguments.tokenizer_model,
        vocab_file=arguments.vocab_file,
        merge_file=arguments.merge_file,
    )
    try:
        tokenizer = build_tokenizer(config, arguments.vocab_size) if arguments.tokenizer_type else None
        lines = describe_dataset(
            arguments.prefix,
            tokenizer=tokenizer,
            documents=arguments.samples,
            seq_length=arguments.seq_length,
            train_samples=arguments.train_samples,
            split=arguments.split,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0
