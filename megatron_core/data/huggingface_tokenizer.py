# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of the `tokenizers` library: a tokenizer.json, a directory that holds one, or GPT-2's vocab and merges."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from megatron_core.data.fast_encoder import EncodeBatch, fast_encoder
from megatron_core.data.tokenizer import FimIds
from megatron_core.errors import DataError

EOD_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]")
PAD_NAMES = ("<pad>", "[PAD]", "<|pad|>", "<fim_pad>", "<|finetune_right_pad_id|>")
FIM_NAMES = (
    ("<fim_prefix>", "<fim_middle>", "<fim_suffix>"),
    ("<fim-prefix>", "<fim-middle>", "<fim-suffix>"),
    ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
)


class HuggingFaceTokenizer:
    """Any tokenizer.json. `eod` and `pad` are names of tokens, or None to look for the usual ones.

    Raises DataError for a vocabulary without tokens.
    """

    def __init__(self, tokenizer: Tokenizer, *, eod: str | None = None, pad: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise DataError("the tokenizer's vocabulary is empty; is it the right file?")
        self.vocab_size = max(vocabulary.values()) + 1
        self.eod = self._first_id([eod] if eod else EOD_NAMES)
        self.pad = self._first_id([pad] if pad else PAD_NAMES)
        self.fim = self._fim_ids()

    @property
    def encoder(self) -> str:
        """gigatoken where it gives the same ids, else tokenizers."""
        return "tokenizers" if self._fast is None else "gigatoken"

    @property
    def eod_name(self) -> str | None:
        """The token that ends a document."""
        return None if self.eod is None else self._tokenizer.id_to_token(self.eod)

    def save(self, path: Path) -> None:
        """Write it as a tokenizer.json."""
        self._tokenizer.save(str(path))

    def encode(self, text: str) -> np.ndarray:
        """Ids of one text, [n] int64."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text."""
        return self._reference(texts) if self._fast is None else self._fast(texts)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of ids, special tokens included."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    @cached_property
    def _fast(self) -> EncodeBatch | None:
        """Made at the first use, since training never encodes."""
        config = orjson.loads(self._tokenizer.to_str())
        added = config.get("added_tokens") or []
        # Without its special tokens, gigatoken takes their characters for the ordinary text that they are here.
        config["added_tokens"] = [token for token in added if not token["special"]]
        probes = [f"x {token['content']} y{token['content']}" for token in added]
        return fast_encoder(orjson.dumps(config).decode(), self._reference, probes=probes)

    def _reference(self, texts: Sequence[str]) -> list[np.ndarray]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def _first_id(self, names: Sequence[str]) -> int | None:
        ids = [self._tokenizer.token_to_id(name) for name in names]
        return next((i for i in ids if i is not None), None)

    def _fim_ids(self) -> FimIds | None:
        for names in FIM_NAMES:
            ids = [self._first_id([name]) for name in names]
            if None not in ids:
                return FimIds(*[i for i in ids if i is not None])
        return None


def gpt2_tokenizer(vocab_file: str, merge_file: str) -> HuggingFaceTokenizer:
    """GPT-2's byte-level BPE from vocab.json and merges.txt. Raises DataError when they cannot be used."""
    for path in (vocab_file, merge_file):
        _check_readable(path)
    try:
        tokenizer = Tokenizer(models.BPE.from_file(vocab_file, merge_file))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"{vocab_file}, {merge_file}: not a BPE vocabulary with its merges: {error}") from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return HuggingFaceTokenizer(tokenizer)


def load_huggingface(path: str) -> HuggingFaceTokenizer:
    """A tokenizer.json, or a directory with one or with vocab.json and merges.txt. Raises DataError otherwise."""
    given = Path(path)
    file = given / "tokenizer.json" if given.is_dir() else given
    if given.is_dir() and not file.exists():
        if (given / "vocab.json").exists() and (given / "merges.txt").exists():
            return gpt2_tokenizer(str(given / "vocab.json"), str(given / "merges.txt"))
        models_here = sorted(str(found) for found in given.glob("*.model"))
        hint = f"; use --tokenizer-type SentencePieceTokenizer with {models_here[0]}" if models_here else ""
        raise DataError(f"--tokenizer-model {path}: neither tokenizer.json nor vocab.json with merges.txt inside{hint}")
    _check_readable(str(file))
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"--tokenizer-model {file}: not a tokenizer.json: {error}") from error
    names = _named_tokens(file.parent / "tokenizer_config.json")
    return HuggingFaceTokenizer(tokenizer, eod=names.get("eos_token"), pad=names.get("pad_token"))


def _named_tokens(path: Path) -> dict[str, str]:
    """Which tokens a tokenizer_config.json says end a document and pad; {} without one."""
    if not path.exists():
        return {}
    try:
        config: dict[str, Any] = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise DataError(f"{path}: not JSON: {error}") from error
    named = {name: config.get(name) for name in ("eos_token", "pad_token")}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in named.items()}
    return {name: text for name, text in texts.items() if text}


def _check_readable(path: str) -> None:
    if not Path(path).is_file():
        raise DataError(f"{path}: no such file; tokenizers are read from local files, never from a hub")
