# SPDX-License-Identifier: Apache-2.0
"""Writes a model of another program as a checkpoint of ours, one tensor in memory at a time.

Shapes are known beforehand, so a file's header is written first and its tensors follow as they are read. The manifest
comes last: what is killed before has never been a checkpoint.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from megatron_core.checkpoint.blocks import BLOCK_BYTES, checksum
from megatron_core.checkpoint.directory import discard, finished_steps, prepare, publish, step_directory
from megatron_core.checkpoint.files import write_file
from megatron_core.checkpoint.foreign import ForeignModel, ForeignTensor
from megatron_core.checkpoint.manifest import DataFile, Manifest, Piece, RankFile, TensorEntry, merge
from megatron_core.checkpoint.rectangle import whole
from megatron_core.checkpoint.safetensors_header import encode_header
from megatron_core.checkpoint.verify import ReportBytes, verify
from megatron_core.checkpoint.writer import dtype_name, rank_file_name
from megatron_core.errors import CheckpointError

_FILE_BYTES = 4 * 10**9
Check = Callable[[Path, Manifest], None]
"""(directory of the step, its manifest, which is not on the disk yet); raises where they must not be published."""


def write_checkpoint(
    foreign: ForeignModel, output: Path, *, step: int = 0, report: ReportBytes, check: Check | None = None
) -> Manifest:
    """Write <output>/step_*, weights alone, read it back, ask `check`, publish.

    `report` hears of bytes written, then of the same number read back. Raises CheckpointError where a tensor cannot be
    read or the step is there already; nothing is left then, nor where `check` raises.
    """
    directory = step_directory(output, step)
    if step in finished_steps(output):
        raise CheckpointError(f"{directory} is there already: give another --output")
    attempt = prepare(output, step)
    try:
        written = [
            _write_file(directory, rank_file_name(number, attempt), tensors, report)
            for number, tensors in enumerate(_files(foreign.tensors))
        ]
        manifest = merge(step, written, state=_new_state(step), config=foreign.config)
        if damages := verify(directory, manifest, report):
            raise CheckpointError(f"{directory} does not read back as it was written: {damages[0].problem}")
        if check is not None:
            check(directory, manifest)
        publish(output, manifest)
    except BaseException:
        with contextlib.suppress(CheckpointError):  # the first error is the one to tell
            discard(output, step)
        raise
    return manifest


def _new_state(step: int) -> Mapping[str, Any]:
    """The scalars of a run that has the weights of `step` and has seen nothing: see training/state_json."""
    return {
        "step": step,
        "applied_steps": 0,
        "applied_samples": 0,
        "consumed_samples": 0,
        "consumed_tokens": 0,
        "loss_scale": None,
        "recent_loss": {"mean": 0.0, "count": 0, "faults": 0},
        "seed": 1234,
        "elapsed_s": 0.0,
        "skipped_steps": [],
    }


def _files(tensors: Sequence[ForeignTensor]) -> Iterator[list[ForeignTensor]]:
    """Tensors by file, each of at most _FILE_BYTES or one tensor; wide elements first, so that all are aligned."""
    pending: list[ForeignTensor] = []
    for tensor in sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize):
        if pending and sum(other.nbytes for other in pending) + tensor.nbytes > _FILE_BYTES:
            yield pending
            pending = []
        pending.append(tensor)
    if pending:
        yield pending


def _write_file(directory: Path, name: str, tensors: Sequence[ForeignTensor], report: ReportBytes) -> RankFile:
    header = encode_header(
        (f"model/{tensor.name}", dtype_name(tensor.dtype), tensor.shape, tensor.nbytes) for tensor in tensors
    )
    checksums: list[list[str]] = [[] for _ in tensors]
    write_file(directory / name, _chunks(header, tensors, checksums, report))
    entries = []
    offset = len(header)
    for tensor, found in zip(tensors, checksums):
        piece = Piece(
            file=name,
            offset=offset,
            nbytes=tensor.nbytes,
            rectangle=whole(tensor.shape),
            checksums=tuple(found),
        )
        entries.append(
            TensorEntry(
                name=f"model/{tensor.name}", shape=tensor.shape, dtype=dtype_name(tensor.dtype), pieces=(piece,)
            )
        )
        offset += tensor.nbytes
    file = DataFile(name=name, size=offset, header_bytes=len(header), header_checksum=checksum(header))
    return RankFile(file=file, tensors=tuple(entries))


def _chunks(
    header: bytes, tensors: Sequence[ForeignTensor], checksums: Sequence[list[str]], report: ReportBytes
) -> Iterator[bytes | memoryview]:
    """The file from its first byte to its last; fills `checksums` on the way, while each block is in the cache."""
    yield header
    # A view of a tensor would keep all of it while the next one is read.
    copy = memoryview(bytearray(BLOCK_BYTES))
    for tensor, found in zip(tensors, checksums):
        data = _bytes_of(tensor)
        for start in range(0, len(data), BLOCK_BYTES):
            block = data[start : start + BLOCK_BYTES]
            found.append(checksum(block))
            copy[: len(block)] = block
            yield copy[: len(block)]
            report(len(block))
        del data, block


def _bytes_of(tensor: ForeignTensor) -> memoryview:
    values = tensor.read()
    assert (tuple(values.shape), values.dtype) == (tensor.shape, tensor.dtype), (
        f"{tensor.name}: read as {values.dtype} {tuple(values.shape)}, not {tensor.dtype} {tensor.shape}"
    )
    assert math.prod(tensor.shape), f"{tensor.name}: shape {tensor.shape} is empty"
    data: memoryview = values.detach().reshape(-1).view(torch.uint8).numpy().data
    return data
