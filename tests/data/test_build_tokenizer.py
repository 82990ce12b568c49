# SPDX-License-Identifier: Apache-2.0
"""Each type by its flags, and what each lacks."""

from pathlib import Path

import pytest

from megatron_core.config.data import DataConfig
from megatron_core.data.build_tokenizer import build_tokenizer
from megatron_core.errors import DataError
from tests.data.tokenizer_files import byte_level_bpe, sentencepiece_model


def build(vocab_size: int | None = None, **flags: object) -> tuple[int, int | None]:
    tokenizer = build_tokenizer(DataConfig(**flags), vocab_size)  # type: ignore[arg-type]
    assert tokenizer.decode(tokenizer.encode("7 5")) == "7 5"
    return tokenizer.vocab_size, tokenizer.eod


def test_types(tmp_path: Path) -> None:
    trained = byte_level_bpe(["<|endoftext|>"])
    trained.model.save(str(tmp_path))
    gpt2 = {"vocab_file": str(tmp_path / "vocab.json"), "merge_file": str(tmp_path / "merges.txt")}
    spm = str(sentencepiece_model(tmp_path / "m.model", "bpe"))
    assert build(tokenizer_type="ByteTokenizer") == (257, 256)
    assert build(9, tokenizer_type="NullTokenizer") == (10, 9)
    assert build(tokenizer_type="GPT2BPETokenizer", **gpt2) == (trained.get_vocab_size(), 0)
    assert build(tokenizer_type="GPT2BPETokenizer", tokenizer_model=str(tmp_path)) == (trained.get_vocab_size(), 0)
    assert build(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(tmp_path)) == (trained.get_vocab_size(), 0)
    for kind in ("SentencePieceTokenizer", "Llama2Tokenizer"):
        assert build(tokenizer_type=kind, tokenizer_model=spm)[1] == 2
    assert build(100, mock_data=True) == (100, 99)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "no tokenizer"),
        ({"mock_data": True}, "no tokenizer"),
        ({"tokenizer_type": "NullTokenizer"}, "needs --vocab-size"),
        ({"tokenizer_type": "GPT2BPETokenizer"}, "needs --vocab-file and --merge-file"),
        ({"tokenizer_type": "HuggingFaceTokenizer"}, "needs --tokenizer-model"),
        ({"tokenizer_type": "SentencePieceTokenizer"}, "needs --tokenizer-model"),
    ],
)
def test_missing_flags(flags: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build(**flags)


def test_a_model_has_as_many_ids_as_its_tokenizer_or_more() -> None:
    for vocab_size in (257, 300):
        assert build(vocab_size, tokenizer_type="ByteTokenizer") == (257, 256)
    with pytest.raises(DataError, match="--vocab-size 256 is less than the 257 ids of the ByteTokenizer"):
        build(256, tokenizer_type="ByteTokenizer")


def test_a_vocabulary_file_alone_means_gpt2(tmp_path: Path) -> None:
    trained = byte_level_bpe(["<|endoftext|>"])
    trained.model.save(str(tmp_path))
    files = {"vocab_file": str(tmp_path / "vocab.json"), "merge_file": str(tmp_path / "merges.txt")}
    assert build(**files) == (trained.get_vocab_size(), 0)
