# SPDX-License-Identifier: Apache-2.0
"""Corpus -> `.bin/.idx`: chunks go to worker processes, and come back in order into the writers.

Each worker has one chunk at a time, so memory does not grow with the corpus, and the result
does not depend on the number of workers. Files appear under their names only when all of it is done.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from megatron_core.data.corpus_encoder import ChunkEncoder, EncodedChunk, EncodeJob, encode_chunk, encoder_of
from megatron_core.data.corpus_files import Chunk, read_chunks
from megatron_core.data.indexed_writer import IndexedWriter
from megatron_core.data.ordered_workers import map_in_order
from megatron_core.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What has been done so far. `empty` counts documents without tokens, which are left out."""

    documents: int = 0
    tokens: int = 0
    empty: int = 0
    bad_lines: int = 0
    text_bytes: int = 0
    bytes_read: int = 0


def prepare(
    paths: Sequence[Path],
    output_prefix: str,
    job: EncodeJob,
    *,
    workers: int,
    split_blank_lines: bool,
    skip_bad_lines: bool,
    report: Callable[[Progress, Sequence[str]], None],
) -> Progress:
    """Write `<output_prefix>_<key>_document.{bin,idx}` for each key; calls `report` with the bad lines of each chunk.

    Raises DataError, and leaves no file, when nothing usable is found, or at a bad line unless they are skipped.
    """
    done = Progress()
    encoder = encoder_of(job)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(IndexedWriter(document_prefix(output_prefix, key), encoder.dtype)) for key in job.keys
        ]
        chunks = read_chunks(paths, job.keys, split_blank_lines=split_blank_lines)
        for result in _encoded(chunks, encoder, workers):
            if result.bad_lines and not skip_bad_lines:
                raise DataError(f"{result.bad_lines[0]} (--on-bad-line skip leaves such lines out)")
            for writer, documents in zip(writers, result.documents):
                writer.add_documents(documents.ids, documents.lengths)
            done = _advance(done, result)
            report(done, result.bad_lines)
        for writer, key in zip(writers, job.keys):
            if writer.num_documents == 0:
                raise DataError(
                    f"nothing to write for the key {key!r}: {done.empty} empty documents, {done.bad_lines} bad lines, "
                    f"{len(paths)} files read; look at --input and --json-keys"
                )
    return done


def document_prefix(output_prefix: str, key: str) -> str:
    """Megatron-LM's name of the data set of one key."""
    return f"{output_prefix}_{key}_document"


def _advance(done: Progress, result: EncodedChunk) -> Progress:
    return replace(
        done,
        documents=done.documents + sum(len(documents.lengths) for documents in result.documents),
        tokens=done.tokens + sum(len(documents.ids) for documents in result.documents),
        empty=done.empty + sum(documents.empty for documents in result.documents),
        bad_lines=done.bad_lines + len(result.bad_lines),
        text_bytes=done.text_bytes + result.text_bytes,
        bytes_read=result.bytes_read,
    )


def _encoded(chunks: Iterable[Chunk], encoder: ChunkEncoder, workers: int) -> Iterator[EncodedChunk]:
    """Encoded chunks in order. One worker is this process."""
    if workers == 1:
        return map(encoder.encode, chunks)
    return map_in_order(partial(encode_chunk, encoder.job), chunks, workers)
