# SPDX-License-Identifier: Apache-2.0
"""tokenizer.json files and GPT-2 vocabularies: ids, special tokens, and text that only looks like one."""

import json
from pathlib import Path

import numpy as np
import pytest

from megatron_core.data.fast_encoder import PROBES
from megatron_core.data.huggingface_tokenizer import HuggingFaceTokenizer, gpt2_tokenizer, load_huggingface
from megatron_core.data.tokenizer import FimIds
from megatron_core.errors import DataError
from tests.data.tokenizer_files import byte_level_bpe

SPECIAL = ["<|endoftext|>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<pad>"]
GPT2 = Path(__file__).parents[3] / "shared" / "data" / "tokenizers" / "gpt2"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf")
    byte_level_bpe(SPECIAL).save(str(folder / "tokenizer.json"))
    return folder


def test_special_ids(saved: Path) -> None:
    tokenizer = load_huggingface(str(saved))
    assert (tokenizer.eod, tokenizer.pad, tokenizer.fim) == (0, 4, FimIds(1, 2, 3))
    assert tokenizer.vocab_size == 400
    assert load_huggingface(str(saved / "tokenizer.json")).vocab_size == 400


def test_special_text_is_ordinary_text(saved: Path) -> None:
    tokenizer = load_huggingface(str(saved))
    text = "a <|endoftext|> in the middle<|endoftext|>"
    for ids in (tokenizer.encode(text), tokenizer.encode_batch([text])[0]):
        assert not set(ids.tolist()) & set(range(5))
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*tokenizer.encode("x").tolist(), 0]) == "x<|endoftext|>"


def test_batches_equal_single_texts(saved: Path) -> None:
    tokenizer = load_huggingface(str(saved))
    for ids, text in zip(tokenizer.encode_batch(PROBES), PROBES):
        assert np.array_equal(ids, tokenizer.encode(text))
        assert tokenizer.decode(ids) == text
    assert tokenizer.encoder == "gigatoken"


def test_named_tokens_of_the_config_win(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((saved / "tokenizer.json").read_bytes())
    config = {"eos_token": {"content": "<pad>"}, "pad_token": "<fim_middle>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_huggingface(str(tmp_path))
    assert (tokenizer.eod, tokenizer.pad) == (4, 2)


def test_gpt2_files_without_a_tokenizer_json(tmp_path: Path) -> None:
    trained = byte_level_bpe(["<|endoftext|>"])
    trained.model.save(str(tmp_path))
    tokenizer = load_huggingface(str(tmp_path))
    assert tokenizer.eod == 0
    assert tokenizer.encode("the fox\n").tolist() == trained.encode("the fox\n").ids


def test_a_vocabulary_without_special_tokens() -> None:
    tokenizer = HuggingFaceTokenizer(byte_level_bpe([]))
    assert (tokenizer.eod, tokenizer.pad, tokenizer.fim) == (None, None, None)


def test_saved_it_is_the_same(tmp_path: Path) -> None:
    tokenizer = HuggingFaceTokenizer(byte_level_bpe(["<|endoftext|>"]))
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_huggingface(str(tmp_path))
    assert again.eod_name == tokenizer.eod_name == "<|endoftext|>"
    assert np.array_equal(again.encode("a <|endoftext|> b"), tokenizer.encode("a <|endoftext|> b"))


@pytest.mark.skipif(not GPT2.is_dir(), reason="GPT-2's vocabulary lies outside of the repository")
def test_gpt2_itself() -> None:
    """The published vocabulary; its known ids of a known sentence."""
    tokenizer = gpt2_tokenizer(str(GPT2 / "vocab.json"), str(GPT2 / "merges.txt"))
    assert (tokenizer.vocab_size, tokenizer.eod) == (50257, 50256)
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]
    for ids, text in zip(tokenizer.encode_batch(PROBES), PROBES):
        assert np.array_equal(ids, tokenizer.encode(text))
        assert tokenizer.decode(ids) == text


def test_unusable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_huggingface(str(tmp_path / "x.json"))
    with pytest.raises(DataError, match=r"neither tokenizer\.json"):
        load_huggingface(str(tmp_path))
    (tmp_path / "spm.model").write_bytes(b"")
    with pytest.raises(DataError, match=r"SentencePieceTokenizer with .*spm\.model"):
        load_huggingface(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"not a tokenizer\.json"):
        load_huggingface(str(tmp_path))
    with pytest.raises(DataError, match="vocabulary is empty"):
        gpt2_tokenizer(str(tmp_path / "tokenizer.json"), str(tmp_path / "spm.model"))
    (tmp_path / "merges.txt").write_text("a b\n")
    with pytest.raises(DataError, match="not a BPE"):
        gpt2_tokenizer(str(tmp_path / "tokenizer.json"), str(tmp_path / "merges.txt"))
