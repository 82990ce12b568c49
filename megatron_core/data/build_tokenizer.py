# SPDX-License-Identifier: Apache-2.0
"""`--tokenizer-type` and its files -> a tokenizer."""

from megatron_core.config.data import DataConfig
from megatron_core.data.byte_tokenizer import ByteTokenizer
from megatron_core.data.huggingface_tokenizer import gpt2_tokenizer, load_huggingface
from megatron_core.data.null_tokenizer import NullTokenizer
from megatron_core.data.sentencepiece_tokenizer import SentencePieceTokenizer
from megatron_core.data.tokenizer import Tokenizer
from megatron_core.errors import DataError


def build_tokenizer(data: DataConfig, vocab_size: int | None = None) -> Tokenizer:
    """The tokenizer that the flags name. `vocab_size`: --vocab-size, where given: of the model, which may have more ids
    than the tokenizer (published models are often padded).

    Raises DataError when a flag that the type needs is missing, its file cannot be used, or it has more ids than that.
    """
    kind = data.tokenizer
    if kind is None:
        if not (data.mock_data and vocab_size):
            raise DataError("no tokenizer: give --tokenizer-type (or --mock-data with --vocab-size)")
        return NullTokenizer(vocab_size - 1)
    if kind == "NullTokenizer":
        if not vocab_size:
            raise DataError("--tokenizer-type NullTokenizer needs --vocab-size")
        return NullTokenizer(vocab_size)
    tokenizer = _from_files(data, kind)
    if vocab_size is not None and vocab_size < tokenizer.vocab_size:
        raise DataError(
            f"--vocab-size {vocab_size} is less than the {tokenizer.vocab_size} ids of the {kind}: leave it out, "
            "or give at least as many"
        )
    return tokenizer


def _from_files(data: DataConfig, kind: str) -> Tokenizer:
    if kind == "ByteTokenizer":
        return ByteTokenizer()
    if kind == "GPT2BPETokenizer":
        if data.vocab_file and data.merge_file:
            return gpt2_tokenizer(data.vocab_file, data.merge_file)
        if data.tokenizer_model:
            return load_huggingface(data.tokenizer_model)
        raise DataError("--tokenizer-type GPT2BPETokenizer needs --vocab-file and --merge-file")
    if not data.tokenizer_model:
        raise DataError(f"--tokenizer-type {kind} needs --tokenizer-model")
    return (
        load_huggingface(data.tokenizer_model)
        if kind == "HuggingFaceTokenizer"
        else SentencePieceTokenizer(data.tokenizer_model)
    )
