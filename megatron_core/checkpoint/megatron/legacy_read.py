# SPDX-License-Identifier: Apache-2.0
"""Opens a legacy checkpoint of Megatron-LM (--ckpt-format torch): one file a rank, cut by its layout.

Layers are numbered within each chunk there; what comes before a chunk is counted, so that any split over stages is
right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from megatron_core.checkpoint.megatron.arguments import Arguments, read_arguments
from megatron_core.checkpoint.megatron.file_tensor import FileTensor
from megatron_core.checkpoint.megatron.legacy_files import LegacyFiles, legacy_files
from megatron_core.checkpoint.megatron.legacy_shards import joined
from megatron_core.checkpoint.megatron.names import canonical, flattened, global_name, layer_of
from megatron_core.checkpoint.megatron.opened import OpenedMegatron, require_names
from megatron_core.checkpoint.megatron.parameters import EMBEDDING, Parameter
from megatron_core.checkpoint.megatron.sharded import ShardedTensor
from megatron_core.checkpoint.megatron.torch_file import open_torch_file
from megatron_core.checkpoint.plain import quote
from megatron_core.errors import CheckpointError

_EQUAL = ("num_layers", "hidden_size", "num_attention_heads", "swiglu", "padded_vocab_size", "ffn_hidden_size")
"""Arguments that all ranks must have alike."""


@dataclass(frozen=True, kw_only=True)
class _Rank:
    """One rank's file."""

    path: Path
    arguments: Arguments
    version: float
    iteration: int
    chunks: Sequence[Mapping[tuple[int | None, str], FileTensor]]
    """For each of its virtual stages, tensors by (layer within the chunk, rest of the name)."""
    inert: frozenset[str]


def open_legacy(directory: Path) -> OpenedMegatron:
    """The checkpoint in an iteration's directory. Reads no tensor. Raises CheckpointError."""
    files = legacy_files(directory)
    ranks = {at: _open_rank(path) for at, path in sorted(files.paths.items())}
    first = ranks[0, 0]
    _check_alike(ranks, files, directory)
    tensors = _by_global_name(ranks, files)
    if EMBEDDING not in tensors:
        raise CheckpointError(f"{first.path} holds no word embeddings")
    layout = f"tensor {files.tp} x pipeline {files.pp} x {len(first.chunks)} chunks, version {first.version:g}"

    def assemble(wanted: Sequence[Parameter]) -> Mapping[str, ShardedTensor]:
        return _assembled(wanted, tensors, first, str(directory))

    return OpenedMegatron(
        origin=f"{directory} ({layout})",
        iteration=first.iteration,
        arguments=first.arguments,
        padded_vocab_size=sum(tensor.shape[0] if tensor.shape else 0 for tensor in tensors[EMBEDDING]),
        num_layers=1 + max((layer for layer in map(layer_of, tensors) if layer is not None), default=-1),
        assemble=assemble,
        inert=frozenset().union(*(rank.inert for rank in ranks.values())),
    )


def _open_rank(path: Path) -> _Rank:
    opened = open_torch_file(path)
    saved = opened.value
    if not isinstance(saved, dict):
        raise CheckpointError(f"{path} is no checkpoint of Megatron-LM: it holds no dictionary")
    version, iteration = saved.get("checkpoint_version", 0), saved.get("iteration", 0)
    known = isinstance(version, (int, float)) and version in (0, 1, 2, 3)
    if not known or type(iteration) is not int or not 0 <= iteration < 10**12:
        raise CheckpointError(f"{path}: no checkpoint of versions 0 to 3 at an iteration of at least 0")
    return _Rank(
        path=path,
        arguments=read_arguments(saved.get("args"), str(path)),
        version=float(version),
        iteration=iteration,
        chunks=[_chunk(weights, path) for weights in _chunks(saved, path)],
        inert=opened.inert,
    )


def _chunks(saved: Mapping[Any, Any], path: Path) -> list[Mapping[Any, Any]]:
    """Weights under "model", or "model0", "model1", …"""
    chunks = [saved["model"]] if "model" in saved else []
    while f"model{len(chunks)}" in saved:
        chunks.append(saved[f"model{len(chunks)}"])
    if not chunks or not all(isinstance(chunk, dict) for chunk in chunks):
        raise CheckpointError(f"{path} holds no weights (model)")
    return chunks


def _chunk(weights: Mapping[Any, Any], path: Path) -> dict[tuple[int | None, str], FileTensor]:
    found: dict[tuple[int | None, str], FileTensor] = {}
    unknown = []
    for name, tensor in flattened(weights, str(path)):
        try:
            key = canonical(name)
        except LookupError:
            unknown.append(name)
            continue
        if key in found:
            raise CheckpointError(f"{path} holds {name} twice, under different names")
        if key is not None:
            found[key] = tensor
    if unknown:
        raise CheckpointError(
            f"{path} holds {len(unknown)} weights that no GPT here has, such as {ascii(sorted(unknown)[0])[1:-1][:80]}"
        )
    return found


def _check_alike(ranks: Mapping[tuple[int, int], _Rank], files: LegacyFiles, directory: Path) -> None:
    first = ranks[0, 0]
    for rank in ranks.values():
        for what, one, other in (
            ("iteration", first.iteration, rank.iteration),
            ("checkpoint_version", first.version, rank.version),
            ("number of chunks", len(first.chunks), len(rank.chunks)),
            *((name, first.arguments.get(name), rank.arguments.get(name)) for name in _EQUAL),
        ):
            if quote(one) != quote(other):
                raise CheckpointError(
                    f"{rank.path} and {first.path} are of different checkpoints: {what} is {quote(other)} and "
                    f"{quote(one)}"
                )
    sizes = [("tensor_model_parallel_size", files.tp), ("pipeline_model_parallel_size", files.pp)]
    for name, found in sizes:
        said = first.arguments.get(name)
        if quote(said) not in ("None", str(found)):
            raise CheckpointError(f"{directory} was saved with {name} {quote(said)}, but holds {found} such ranks")


def _by_global_name(ranks: Mapping[tuple[int, int], _Rank], files: LegacyFiles) -> dict[str, list[FileTensor]]:
    """Name of `parameters` -> what each tensor-parallel rank has of it. Stage k = chunk · pp + rank follows k - 1."""
    chunks = len(ranks[0, 0].chunks)
    stages = [[ranks[p, t].chunks[chunk] for t in range(files.tp)] for chunk in range(chunks) for p in range(files.pp)]
    sizes = [1 + max((layer for layer, _ in stage[0] if layer is not None), default=-1) for stage in stages]
    found: dict[str, list[FileTensor]] = {}
    for before, stage in zip(accumulate(sizes, initial=0), stages):
        for shard in stage:
            if shard.keys() != stage[0].keys():
                layer, rest = next(iter(shard.keys() ^ stage[0].keys()))
                raise CheckpointError(
                    f"{ranks[0, 0].path.parent.parent}: tensor-parallel ranks hold different weights, such as "
                    f"{global_name(None if layer is None else layer + before, rest)}"
                )
        for layer, rest in stage[0]:
            name = global_name(None if layer is None else layer + before, rest)
            if name in found:
                raise CheckpointError(f"{shard[layer, rest].path.parent} holds {name}, and so does another stage")
            found[name] = [shard[layer, rest] for shard in stage]
    return found


def _assembled(
    wanted: Sequence[Parameter], tensors: Mapping[str, Sequence[FileTensor]], first: _Rank, origin: str
) -> dict[str, ShardedTensor]:
    require_names(wanted, tensors, origin)
    by_name = {parameter.name: parameter for parameter in wanted}
    # What is left over is the tied head's copy of the embedding.
    found = {
        name: joined(name, by_name.get(name, by_name[EMBEDDING]), tensors[name], first.version) for name in tensors
    }
    for tensor in found.values():
        tensor.check()
    return found
