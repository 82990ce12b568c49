# SPDX-License-Identifier: Apache-2.0
"""Rules about the data: one source, a sensible split, what each tokenizer needs. No file is looked at here."""

import math
import re
from collections.abc import Iterator

from megatron_core.config.rules.rule import Rule
from megatron_core.config.run import RunConfig


def _data_source(config: RunConfig, world: int) -> Iterator[str]:
    data = config.data
    per_split = data.train_data_path or data.valid_data_path or data.test_data_path
    given = [
        flag
        for flag, value in (
            ("--data-path", data.data_path),
            ("--train/valid/test-data-path", per_split),
            ("--data-args-path", data.data_args_path),
            ("--per-split-data-args-path", data.per_split_data_args_path),
            ("--mock-data", data.mock_data),
        )
        if value
    ]
    if not given:
        yield "no data: give --data-path, --train-data-path, a file form of them, or --mock-data"
    elif len(given) > 1:
        yield f"{' and '.join(given)} exclude each other: choose one"
    elif per_split and not data.train_data_path:
        yield "--valid-data-path and --test-data-path need --train-data-path"


def _split(config: RunConfig, world: int) -> Iterator[str]:
    data = config.data
    if data.split is None:
        return
    if data.train_data_path or data.per_split_data_args_path:
        yield f"--split {data.split} does not go with data given per split: leave it out"
    try:
        weights = [float(part) for part in re.split("[,/]", data.split)]
    except ValueError:
        weights = []
    if not 1 <= len(weights) <= 3 or not all(math.isfinite(w) and w >= 0 for w in weights) or sum(weights) <= 0:
        yield (
            f"--split {data.split!r} must be up to three weights of train, validation and test, none negative and not "
            "all 0, such as 949,50,1"
        )
    elif weights[0] == 0:
        yield f"--split {data.split!r} leaves nothing to train on"


def _validation_sets(config: RunConfig, world: int) -> Iterator[str]:
    names = []
    for item in config.data.validation_sets:
        name, _, prefix = item.partition("=")
        names.append(name)
        if not name or not prefix:
            yield f"--validation-sets takes NAME=PREFIX, not {item!r}"
    if len(set(names)) < len(names):
        yield f"--validation-sets has a name twice: {' '.join(names)}"


def _tokenizer(config: RunConfig, world: int) -> Iterator[str]:
    data, kind = config.data, config.data.tokenizer
    if kind is None:
        if not (data.mock_data and config.model.vocab_size is not None):
            yield "--tokenizer-type is required (with --mock-data, --vocab-size N does as well)"
    elif kind == "GPT2BPETokenizer":
        if data.vocab_file is None or data.merge_file is None:
            yield "GPT2BPETokenizer needs --vocab-file and --merge-file"
    elif kind in ("HuggingFaceTokenizer", "SentencePieceTokenizer", "Llama2Tokenizer"):
        if data.tokenizer_model is None:
            yield f"{kind} needs --tokenizer-model"
    elif kind == "NullTokenizer" and config.model.vocab_size is None:
        yield "NullTokenizer needs --vocab-size"


RULES = (
    Rule(_data_source),
    Rule(_split),
    Rule(_validation_sets),
    Rule(_tokenizer, "vocab_size"),
)
