# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of ours as a directory that transformers and vLLM load: config.json, sharded safetensors, tokenizer.

It is written under another name and renamed at the end, so that what was killed before looks unfinished.
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from megatron_core.checkpoint.files import naming, sync_directory, write_file
from megatron_core.checkpoint.huggingface.families import family_for
from megatron_core.checkpoint.huggingface.family import Family
from megatron_core.checkpoint.huggingface.link import Link, by_ours, by_theirs
from megatron_core.checkpoint.huggingface.tokenizer_files import export_tokenizer, special_ids
from megatron_core.checkpoint.huggingface.weight_files import INDEX, SINGLE
from megatron_core.checkpoint.safetensors_header import encode_header
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.checkpoint.verify import ReportBytes
from megatron_core.checkpoint.writer import dtype_name
from megatron_core.config.data import DataConfig
from megatron_core.config.model import ModelConfig
from megatron_core.config.run import RunConfig
from megatron_core.config.validate import model_violations
from megatron_core.errors import CheckpointError, ConfigError

_FILE_BYTES = 5 * 10**9
_CHUNK_BYTES = 2**22
Check = Callable[[Path], None]
"""Called with the directory when all is written; raises where it must not get its name."""


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    """One tensor of theirs, and the parts of ours that it consists of."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    links: Sequence[Link]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def export_model(
    stored: StoredModel,
    output: Path,
    *,
    family: str | None = None,
    tokenizer_model: str | None = None,
    report: ReportBytes,
    check: Check | None = None,
) -> Family:
    """Write a checkpoint's weights, config and tokenizer to the new directory `output`; the family that it became.

    `tokenizer_model`: where the tokenizer's files are now, if not where they were. `report` hears of bytes written.
    Raises ConfigError where no family (or not that one) computes what the model does, CheckpointError where the
    checkpoint is damaged or does not hold what its config says, or `output` is there already; nothing is left then.
    """
    kind = _family(stored, family)
    tensors = _tensors(kind, stored)
    data = stored.data if tokenizer_model is None else replace(stored.data, tokenizer_model=tokenizer_model)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise CheckpointError(f"{output} is there already: give another --output")
    unfinished = output.absolute().with_name(f"{output.absolute().name}.unfinished")
    with naming("make", unfinished):
        if unfinished.exists():
            shutil.rmtree(unfinished)  # the rest of an export that was killed
        unfinished.mkdir(parents=True)
    try:
        _write_weights(unfinished, tensors, stored, report)
        export_tokenizer(data, unfinished)
        _write_config(unfinished, kind, stored.model, data, tensors)
        sync_directory(unfinished)
        if check is not None:
            check(unfinished)
        with naming("write", output):
            os.rename(unfinished, output)
        sync_directory(output.absolute().parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return kind


def export_bytes(stored: StoredModel, family: str | None = None) -> int:
    """Bytes that `export_model` will report. Raises as it does."""
    return sum(tensor.nbytes for tensor in _tensors(_family(stored, family), stored))


def _family(stored: StoredModel, wanted: str | None) -> Family:
    """What the model becomes, once its manifest's config makes sense. Raises ConfigError."""
    model = stored.model
    if found := model_violations(RunConfig(model=model), 1):
        raise ConfigError(f"the config of {stored.directory}: {'; '.join(found)}")
    if model.num_layers > len(stored.names):
        raise ConfigError(f"{stored.directory} says {model.num_layers} layers, but holds {len(stored.names)} weights")
    return family_for(model, wanted)


def _tensors(family: Family, stored: StoredModel) -> list[_Tensor]:
    """What is to be written, wide elements first. Raises CheckpointError unless it is all that is stored."""
    links = list(family.links(stored.model))
    wanted = by_ours(links)
    for name, parts in wanted.items():
        if stored.shape(name) != parts[0].ours_shape:
            raise CheckpointError(
                f"{name} has shape {stored.shape(name)}, but the config makes it {parts[0].ours_shape}"
            )
    if rest := sorted(set(stored.names) - wanted.keys()):
        raise CheckpointError(f"{len(rest)} weights have no place in a {family.name} of this config: {rest[0]}")
    tensors = [
        _Tensor(
            name=name,
            shape=parts[0].theirs_shape,
            dtype=reduce(torch.promote_types, (stored.dtype(item.ours) for item in parts)),
            links=parts,
        )
        for name, parts in by_theirs(links).items()
    ]
    return sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize)


def _write_weights(directory: Path, tensors: Sequence[_Tensor], stored: StoredModel, report: ReportBytes) -> None:
    files = list(_files(tensors))
    names = (
        [SINGLE]
        if len(files) == 1
        else [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    )
    for name, here in zip(names, files):
        write_file(directory / name, _chunks(here, stored, report))
    if len(files) > 1:
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors)},
            "weight_map": {tensor.name: name for name, here in zip(names, files) for tensor in here},
        }
        _write_json(directory / INDEX, index)


def _files(tensors: Sequence[_Tensor]) -> Iterator[list[_Tensor]]:
    """Tensors by file, each of at most _FILE_BYTES or one tensor."""
    pending: list[_Tensor] = []
    for tensor in tensors:
        if pending and sum(other.nbytes for other in pending) + tensor.nbytes > _FILE_BYTES:
            yield pending
            pending = []
        pending.append(tensor)
    yield pending


def _chunks(tensors: Sequence[_Tensor], stored: StoredModel, report: ReportBytes) -> Iterator[bytes | memoryview]:
    """A file from its first byte to its last, with one tensor in memory at a time."""
    entries = [(tensor.name, dtype_name(tensor.dtype), tensor.shape, tensor.nbytes) for tensor in tensors]
    yield encode_header(entries, {"format": "pt"})
    # A view of a tensor would keep all of it while the next one is read.
    copy = memoryview(bytearray(_CHUNK_BYTES))
    for tensor in tensors:
        values = torch.empty(tensor.shape, dtype=tensor.dtype)
        for item in tensor.links:
            stored.fill(item.part_of_theirs(values), item.ours, item.ours_at)
        data = values.reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), _CHUNK_BYTES):
            chunk = data[start : start + _CHUNK_BYTES]
            copy[: len(chunk)] = chunk
            yield copy[: len(chunk)]
            report(len(chunk))
        del values, data, chunk


def _write_config(
    directory: Path, family: Family, model: ModelConfig, data: DataConfig, tensors: Sequence[_Tensor]
) -> None:
    ids = special_ids(data)
    dtype = dtype_name(reduce(torch.promote_types, (tensor.dtype for tensor in tensors)))
    config: Mapping[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.name,
        "torch_dtype": dtype,
        **family.write_config(model),
        **ids,
    }
    if not (directory / "generation_config.json").exists():
        _write_json(directory / "generation_config.json", ids)
    _write_json(directory / "config.json", config)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_file(path, [(json.dumps(value, indent=2) + "\n").encode()])
