# SPDX-License-Identifier: Apache-2.0
"""The documents whose perplexity is asked for: a text file, rows with a `text`, or a tokenised `.bin/.idx` pair."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from megatron_core.data.corpus_files import read_chunks
from megatron_core.data.indexed_file import IndexedFile
from megatron_core.data.indexed_format import idx_path
from megatron_core.data.tokenizer import Tokenizer
from megatron_core.errors import DataError
from megatron_core.evaluation.fields import text
from megatron_core.evaluation.perplexity import Document, text_document
from megatron_core.evaluation.task_rows import read_rows


def read_documents(path: Path, tokenizer: Tokenizer, limit: int | None = None) -> list[Document]:
    """All documents, or the first of them. `path`: a .jsonl (one a row) or .txt (one document), plain or compressed,
    any other text, or what the names of a .bin and an .idx have in common.

    Raises DataError where there is no such file, or it cannot be read.
    """
    if Path(idx_path(path)).exists():
        return list(islice(_tokenised(path, tokenizer), limit))
    if not path.is_file():
        raise DataError(f"{path}: no such file, and no {path}.idx")
    texts = list(islice(_texts(path), limit))
    return [text_document(each, ids.tolist()) for each, ids in zip(texts, tokenizer.encode_batch(texts))]


def _texts(path: Path) -> Iterator[str]:
    if ".jsonl" in path.suffixes:
        for _, found in read_rows(path, lambda row: text(row, "text")):
            yield found
        return
    try:
        yield _bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error}") from error


def _bytes(path: Path) -> bytes:
    """The whole file; WikiText and others have text under any name."""
    if ".txt" in path.suffixes:
        return b"".join(chunk.payload for chunk in read_chunks([path], [], split_blank_lines=False))
    return path.read_bytes()


def _tokenised(prefix: Path, tokenizer: Tokenizer) -> Iterator[Document]:
    """Documents of an indexed file; bytes and words are those of their decoded text."""
    file = IndexedFile(prefix)
    for first, end in zip(file.document_indices[:-1], file.document_indices[1:]):
        start, stop = file.token_range(int(first), int(end))
        ids = file.read_tokens(start, stop - start).astype(np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
            raise DataError(f"{prefix}: holds the id {ids.max()}, but the tokenizer has {tokenizer.vocab_size} ids")
        yield text_document(tokenizer.decode(ids[ids != tokenizer.eod]), ids.tolist())
