# SPDX-License-Identifier: Apache-2.0
"""The files of a tokenizer that travel beside weights, in and out."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from megatron_core.checkpoint.files import naming
from megatron_core.config.data import DataConfig
from megatron_core.data.build_tokenizer import build_tokenizer
from megatron_core.data.huggingface_tokenizer import HuggingFaceTokenizer
from megatron_core.errors import CheckpointError

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
_BYTE_EOD = "<|endoftext|>"


def import_tokenizer(source: Path, target: Path, vocabulary: int) -> DataConfig:
    """Copy a model's tokenizer files to `target`; the flags that name them, or NullTokenizer where there are none.

    Raises DataError where they cannot be used, CheckpointError where they have more ids than the `vocabulary`.
    """
    present = {name for name in FILES if (source / name).is_file()}
    if "tokenizer.json" in present or {"vocab.json", "merges.txt"} <= present:
        found = DataConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(source))
        place = target.absolute()
    elif "tokenizer.model" in present:
        found = DataConfig(tokenizer_type="SentencePieceTokenizer", tokenizer_model=str(source / "tokenizer.model"))
        place = target.absolute() / "tokenizer.model"
    else:
        return DataConfig(tokenizer_type="NullTokenizer")
    ids = build_tokenizer(found).vocab_size
    if ids > vocabulary:
        raise CheckpointError(f"the tokenizer in {source} has {ids} ids, but the model {vocabulary}")
    copy_files(source, target)
    return dataclasses.replace(found, tokenizer_model=str(place))


def copy_files(source: Path, target: Path) -> None:
    """Copy what there is of FILES into a directory, which may not exist yet."""
    for name in FILES:
        if (source / name).is_file():
            with naming("write", target / name):
                target.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / name, target / name)


def export_tokenizer(data: DataConfig, target: Path) -> None:
    """Write the files from which transformers makes the same tokenizer; none where it knows no such kind.

    Raises DataError where the tokenizer's own files cannot be used.
    """
    kind = data.tokenizer
    if kind in (None, "NullTokenizer"):
        return
    tokenizer = build_tokenizer(data)
    given = None if data.tokenizer_model is None else Path(data.tokenizer_model)
    if kind == "ByteTokenizer":
        _byte_level().save(str(target / "tokenizer.json"))
        _write_names(target, _BYTE_EOD)
    elif isinstance(tokenizer, HuggingFaceTokenizer):
        if given is not None:
            copy_files(given if given.is_dir() else given.parent, target)
        if not (target / "tokenizer.json").exists() or (given is not None and given.name not in FILES):
            tokenizer.save(target / "tokenizer.json")
        if not (target / "tokenizer_config.json").exists():
            _write_names(target, tokenizer.eod_name)
    elif given is not None:
        with naming("write", target / "tokenizer.model"):
            shutil.copyfile(given, target / "tokenizer.model")


def special_ids(data: DataConfig) -> dict[str, Any]:
    """Keys of a config.json that say where generation ends; what stands before a text is the tokenizer's business."""
    none = data.tokenizer in (None, "NullTokenizer")
    return {"bos_token_id": None, "eos_token_id": None if none else build_tokenizer(data).eod}


def _byte_level() -> Tokenizer:
    """Our ByteTokenizer for the tokenizers library: 256 symbols, no merges, and the end of a document as id 256."""
    tokenizer = Tokenizer(models.BPE({symbol: byte for byte, symbol in enumerate(_byte_symbols())}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(_BYTE_EOD, special=True)])
    return tokenizer


def _byte_symbols() -> list[str]:
    """GPT-2's printable stand-in for each byte: itself where it prints, else the next free character from 256 on."""
    printing = {*range(33, 127), *range(161, 173), *range(174, 256)}
    symbols, free = [], 256
    for byte in range(256):
        symbols.append(chr(byte if byte in printing else free))
        free += byte not in printing
    return symbols


def _write_names(target: Path, eos: str | None) -> None:
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "clean_up_tokenization_spaces": False}
    with naming("write", target / "tokenizer_config.json"):
        (target / "tokenizer_config.json").write_text(json.dumps(values, indent=2) + "\n")
