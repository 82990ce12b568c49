# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from megatron_core.checkpoint.huggingface.tokenizer_files import export_tokenizer, import_tokenizer, special_ids
from megatron_core.config.data import DataConfig
from megatron_core.data.build_tokenizer import build_tokenizer
from megatron_core.errors import DataError
from tests.data.tokenizer_files import byte_level_bpe, sentencepiece_model

TEXT = "Héllo wörld,\n\t 5 × 5 = 25\x00\x7f 日本"


def assert_same_tokenizer(data: DataConfig, folder: Path) -> None:
    """transformers makes the same ids of a text from what was written, and the same text of them."""
    ours, theirs = build_tokenizer(data), AutoTokenizer.from_pretrained(folder)
    ids = ours.encode(TEXT).tolist()
    assert theirs(TEXT, add_special_tokens=False)["input_ids"] == ids
    assert theirs.decode(ids) == ours.decode(ids)
    assert theirs.eos_token_id == ours.eod


def folder_of(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return path


def test_bytes_for_other_programs(tmp_path: Path) -> None:
    data = DataConfig(tokenizer_type="ByteTokenizer")
    export_tokenizer(data, folder_of(tmp_path / "out"))
    assert_same_tokenizer(data, tmp_path / "out")


def test_byte_pairs_of_gpt2(tmp_path: Path) -> None:
    byte_level_bpe(["<|endoftext|>"]).model.save(str(tmp_path))
    files = {"vocab_file": str(tmp_path / "vocab.json"), "merge_file": str(tmp_path / "merges.txt")}
    data = DataConfig(tokenizer_type="GPT2BPETokenizer", **files)
    export_tokenizer(data, folder_of(tmp_path / "out"))
    assert_same_tokenizer(data, tmp_path / "out")


@pytest.mark.parametrize("name", ["tokenizer.json", "mine.json"])
def test_a_tokenizer_json(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    byte_level_bpe(["<|endoftext|>"]).save(str(tmp_path / "in" / name))
    data = DataConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(tmp_path / "in" / name))
    export_tokenizer(data, folder_of(tmp_path / "out"))
    assert_same_tokenizer(data, tmp_path / "out")


def test_in_and_out_again(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "hf")
    tokenizer = byte_level_bpe(["<stop>"])
    tokenizer.save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text('{"eos_token": "<stop>", "chat_template": "x"}')
    (source / "generation_config.json").write_text('{"eos_token_id": 7}')
    data = import_tokenizer(source, tmp_path / "run" / "tokenizer", tokenizer.get_vocab_size())
    assert data.tokenizer_model == str(tmp_path / "run" / "tokenizer")
    assert build_tokenizer(data).eod == tokenizer.token_to_id("<stop>") == special_ids(data)["eos_token_id"]
    (tmp_path / "back").mkdir()
    export_tokenizer(data, tmp_path / "back")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()


def test_sentencepiece_and_none(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "hf")
    none = import_tokenizer(source, tmp_path / "run", 100)
    assert none.tokenizer_type == "NullTokenizer" and not (tmp_path / "run").exists()
    export_tokenizer(none, source)
    assert special_ids(none) == {"bos_token_id": None, "eos_token_id": None}
    sentencepiece_model(source / "tokenizer.model", "bpe")
    data = import_tokenizer(source, tmp_path / "run", 10**6)
    assert data.tokenizer_type == "SentencePieceTokenizer" and build_tokenizer(data).eod == 2
    (tmp_path / "back").mkdir()
    export_tokenizer(data, tmp_path / "back")
    assert (tmp_path / "back" / "tokenizer.model").read_bytes() == (source / "tokenizer.model").read_bytes()


def test_files_that_are_gone(tmp_path: Path) -> None:
    gone = DataConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(tmp_path / "gone"))
    with pytest.raises(DataError, match="no such file"):
        export_tokenizer(gone, tmp_path)
