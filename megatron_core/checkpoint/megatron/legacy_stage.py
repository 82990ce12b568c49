# SPDX-License-Identifier: Apache-2.0
"""Writes the files of one pipeline rank of a legacy checkpoint of Megatron-LM, one parameter in memory at a time.

torch.save first writes each file with its tensors left as holes, which takes neither memory nor time (and puts no
checksums, which torch does not look at); then one parameter after the other is read and its shards go to their places.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.serialization import skip_data

from megatron_core.checkpoint.files import naming, sync_directory
from megatron_core.checkpoint.megatron.file_tensor import FileTensor
from megatron_core.checkpoint.megatron.parameters import Parameter
from megatron_core.checkpoint.megatron.target import Target
from megatron_core.checkpoint.megatron.torch_file import open_torch_file
from megatron_core.checkpoint.megatron.write_arguments import write_arguments
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.checkpoint.verify import ReportBytes
from megatron_core.errors import CheckpointError
from megatron_core.model.gpt import EMBEDDING_NAME

_BLOCK_BYTES = 2**22


def write_stage(
    stored: StoredModel, wanted: Sequence[Parameter], target: Target, rank: int, directory: Path, report: ReportBytes
) -> None:
    """All files of pipeline rank `rank`, into new directories of theirs in `directory`; `report` hears of bytes.

    Raises CheckpointError where a weight cannot be read or a file not written.
    """
    tp, pp = target.tensor_model_parallel_size, target.pipeline_model_parallel_size
    chunks = target.chunks_of(stored.model, wanted, rank)
    paths = []
    for shard in range(tp):
        folder = directory / (f"mp_rank_{shard:02d}_{rank:03d}" if pp > 1 else f"mp_rank_{shard:02d}")
        with naming("write", folder):
            folder.mkdir()
        paths.append(folder / "model_optim_rng.pt")
        _write_holes(paths[-1], stored, target, chunks, shard)
    files = [open_torch_file(path).value for path in paths]
    with ExitStack() as stack:
        descriptors = [stack.enter_context(_writable(path)) for path in paths]
        for key, chunk in zip(_chunk_keys(len(chunks)), chunks):
            for name, parameter in chunk.items():
                matrix = _matrix(stored, parameter)
                for shard, (descriptor, file) in enumerate(zip(descriptors, files)):
                    _write_shard(descriptor, file[key][name], matrix, parameter.shard(tp, shard), report)
                del matrix  # before the next one is made
    for path in paths:
        sync_directory(path.parent)


def parameter_dtype(stored: StoredModel, parameter: Parameter) -> torch.dtype:
    """That of all its parts. Raises CheckpointError where they differ."""
    dtypes = {stored.dtype(part.name) for part in parameter.parts}
    if len(dtypes) > 1:
        raise CheckpointError(f"{parameter.name} would be made of {' and '.join(map(str, dtypes))}: give --dtype")
    return dtypes.pop()


def _chunk_keys(count: int) -> list[str]:
    return ["model"] if count == 1 else [f"model{number}" for number in range(count)]


def _write_holes(
    path: Path, stored: StoredModel, target: Target, chunks: Sequence[Mapping[str, Parameter]], shard: int
) -> None:
    """A rank's file with everything but the numbers."""
    tp = target.tensor_model_parallel_size
    weights: dict[str, Any] = {}
    for key, chunk in zip(_chunk_keys(len(chunks)), chunks):
        weights[key] = {
            name: torch.empty(_shape(parameter.shard(tp, shard)), dtype=parameter_dtype(stored, parameter))
            for name, parameter in chunk.items()
        }
        weights[key].update(dict.fromkeys(target.empty_states(chunk)))
    state = {
        "args": write_arguments(stored.model, target, stored.manifest, stored.dtype(EMBEDDING_NAME)),
        "checkpoint_version": 3.0,
        "iteration": stored.manifest.step,
        **weights,
    }
    with naming("write", path), skip_data():
        torch.save(state, path)


@contextlib.contextmanager
def _writable(path: Path) -> Iterator[int]:
    with naming("write", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _shape(rectangles: Sequence[Rectangle]) -> tuple[int, ...]:
    return (sum(rectangle.shape[0] for rectangle in rectangles), *rectangles[0].shape[1:])


def _matrix(stored: StoredModel, parameter: Parameter) -> torch.Tensor:
    """A parameter from our tensors; rows that no tensor of ours has are padding."""
    matrix = torch.empty(parameter.shape, dtype=parameter_dtype(stored, parameter))
    matrix[max(r.stop[0] for part in parameter.parts for r in part.rectangles(parameter.width)) :].zero_()
    for part in parameter.parts:
        if part.blocks == 1:
            (rectangle,) = part.rectangles(parameter.width)
            stored.fill(matrix[rectangle.start[0] : rectangle.stop[0]].view(part.shape), part.name)
            continue
        blocks = stored.read(part.name).view(part.matrix_shape(parameter.width))
        for block, rectangle in zip(blocks, part.rectangles(parameter.width)):
            matrix[rectangle.start[0] : rectangle.stop[0]] = block
    return matrix


def _write_shard(
    descriptor: int, place: FileTensor, matrix: torch.Tensor, rectangles: Sequence[Rectangle], report: ReportBytes
) -> None:
    """Put the rectangles of a matrix one below the other into their place, some rows at a time."""
    offset = place.start
    for rectangle in rectangles:
        part = matrix[rectangle.slices((0,) * matrix.dim())]
        rows = max(_BLOCK_BYTES * part.shape[0] // (part.numel() * part.element_size()), 1)
        for first in range(0, part.shape[0], rows):
            data = part[first : first + rows].contiguous().view(-1).view(torch.uint8).numpy().data
            _write_all(descriptor, data, offset)
            offset += len(data)
            report(len(data))


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)
    # Starts bringing them to the disk, and gives the page cache back.
    os.posix_fadvise(descriptor, offset, len(data), os.POSIX_FADV_DONTNEED)
