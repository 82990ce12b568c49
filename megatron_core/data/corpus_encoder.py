# SPDX-License-Identifier: Apache-2.0
"""A chunk of documents -> token ids: what each worker process does when a corpus is prepared."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import orjson

from megatron_core.config.data import DataConfig
from megatron_core.data.build_tokenizer import build_tokenizer
from megatron_core.data.corpus_files import Chunk
from megatron_core.data.indexed_format import token_dtype
from megatron_core.data.tokenizer import Tokenizer
from megatron_core.errors import DataError

_BLANK_LINES = re.compile(rb"\n[ \t\r]*\n\s*")


@dataclass(frozen=True, kw_only=True)
class EncodeJob:
    """What is the same for all chunks."""

    tokenizer: DataConfig
    vocab_size: int | None
    keys: tuple[str, ...]
    append_eod: bool


@dataclass(frozen=True, kw_only=True)
class EncodedDocuments:
    """Documents of one key: their ids end to end, the length of each, and how many were empty and left out."""

    ids: np.ndarray
    lengths: np.ndarray
    empty: int


@dataclass(frozen=True, kw_only=True)
class EncodedChunk:
    """Documents by key, and the lines that could not be used, as "file:line: reason"."""

    documents: tuple[EncodedDocuments, ...]
    bad_lines: tuple[str, ...]
    text_bytes: int
    bytes_read: int


class ChunkEncoder:
    """Encodes chunks with one tokenizer. Raises DataError when that cannot be built or has no end of document."""

    def __init__(self, job: EncodeJob) -> None:
        self.job = job
        self.tokenizer: Tokenizer = build_tokenizer(job.tokenizer, job.vocab_size)
        self.dtype = token_dtype(self.tokenizer.vocab_size)
        if job.append_eod and self.tokenizer.eod is None:
            raise DataError("--append-eod: the tokenizer has no end-of-document token; take another or drop the flag")

    def encode(self, chunk: Chunk) -> EncodedChunk:
        """Ids of the documents of a chunk, for each key."""
        if chunk.kind == "jsonl":
            texts, bad = self._json_texts(chunk)
        else:
            texts, bad = self._plain_texts(chunk)
        return EncodedChunk(
            documents=tuple(self._encoded(of_key, chunk) for of_key in texts),
            bad_lines=tuple(bad),
            text_bytes=len(chunk.payload),
            bytes_read=chunk.bytes_read,
        )

    def _encoded(self, texts: Sequence[str], chunk: Chunk) -> EncodedDocuments:
        rows = [ids for ids in self.tokenizer.encode_batch(texts) if len(ids)]
        empty = len(texts) - len(rows)
        if self.job.append_eod:
            eod = np.array([self.tokenizer.eod])
            rows = [part for ids in rows for part in (ids, eod)]
        lengths = np.array([len(ids) for ids in rows], dtype=np.int64)
        ids = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.tokenizer.vocab_size):
            raise DataError(
                f"{chunk.path}: token ids from {ids.min()} to {ids.max()} for a vocabulary of "
                f"{self.tokenizer.vocab_size}; the tokenizer files do not belong together"
            )
        if self.job.append_eod:
            lengths = lengths[::2] + 1
        return EncodedDocuments(ids=ids.astype(self.dtype), lengths=lengths, empty=empty)

    def _json_texts(self, chunk: Chunk) -> tuple[list[list[str]], list[str]]:
        texts: list[list[str]] = [[] for _ in self.job.keys]
        bad = []
        for number, line in enumerate(chunk.payload.split(b"\n"), chunk.first_line):
            if not line or line.isspace():
                continue
            record, reason = self._record(line)
            if reason:
                bad.append(f"{chunk.path}:{number}: {reason}")
                continue
            for of_key, text in zip(texts, record):
                of_key.append(text)
        return texts, bad

    def _record(self, line: bytes) -> tuple[list[str], str]:
        """Texts of the keys, or the reason why the line cannot be used."""
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            return [], f"not JSON: {str(error)[:100]}"
        if not isinstance(record, dict):
            return [], f"a JSON {type(record).__name__}, not an object"
        for key in self.job.keys:
            if not isinstance(record.get(key), str):
                return [], f"no text under the key {key!r}; keys here: {', '.join(record)[:80]}"
        texts = [record[key] for key in self.job.keys]
        return texts, self._refusal(texts)

    def _refusal(self, texts: Sequence[str]) -> str:
        """Why the tokenizer cannot take these texts, if it cannot. Only numbers in place of text can be refused."""
        if self.job.tokenizer.tokenizer_type != "NullTokenizer":
            return ""
        try:
            self.tokenizer.encode_batch(texts)
        except DataError as error:
            return str(error)
        return ""

    def _plain_texts(self, chunk: Chunk) -> tuple[list[list[str]], list[str]]:
        pieces = _BLANK_LINES.split(chunk.payload) if chunk.kind == "blocks" else [chunk.payload]
        texts, bad = [], []
        for piece in pieces:
            try:
                text = piece.decode()
            except UnicodeDecodeError as error:
                line = chunk.first_line + chunk.payload[: chunk.payload.find(piece) + error.start].count(b"\n")
                bad.append(f"{chunk.path}:{line}: not UTF-8: {error.reason} (byte {error.start} of the document)")
                continue
            if not text or text.isspace():
                text = ""
            reason = self._refusal([text])
            if reason:
                bad.append(f"{chunk.path}:{chunk.first_line}: {reason}")
            elif text or chunk.kind == "text":
                texts.append(text)
        return [texts for _ in self.job.keys], bad


@lru_cache(maxsize=1)
def encoder_of(job: EncodeJob) -> ChunkEncoder:
    """The encoder of a job, built once a process, for it is too large to travel with every chunk."""
    return ChunkEncoder(job)


def encode_chunk(job: EncodeJob, chunk: Chunk) -> EncodedChunk:
    """Encode one chunk in a worker process."""
    return encoder_of(job).encode(chunk)
