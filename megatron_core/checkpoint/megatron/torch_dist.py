# SPDX-License-Identifier: Apache-2.0
"""Opens a torch_dist checkpoint of Megatron-LM: PyTorch's distributed format, with global names whatever its layout.

Layers of one kind are stacked along a first dim (decoder.layers.mlp.linear_fc1.weight [L, f, h]) or have their number
in the name; SwiGLU's halves lie one below the other.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron_core.checkpoint.files import naming
from megatron_core.checkpoint.megatron.arguments import read_arguments
from megatron_core.checkpoint.megatron.distributed_metadata import DistributedMetadata, read_metadata
from megatron_core.checkpoint.megatron.file_tensor import FileTensor
from megatron_core.checkpoint.megatron.names import canonical, global_name, layer_of
from megatron_core.checkpoint.megatron.opened import OpenedMegatron, require_names
from megatron_core.checkpoint.megatron.parameters import EMBEDDING, Parameter
from megatron_core.checkpoint.megatron.sharded import ShardedTensor
from megatron_core.checkpoint.megatron.torch_file import TorchFile, open_torch_file
from megatron_core.checkpoint.plain import quote
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.errors import CheckpointError

SIGN = "metadata.json"
"""Written last: what has none was never finished."""
_COMMON = "common.pt"
_STACKED = "decoder.layers."
_WEIGHTS = ("embedding.", "encoder.", "decoder.", "output_layer.", "mtp.", "model.", "module.", "language_model.")

Source = tuple[str, int | None]
"""The stored name of a parameter, and which index of its first dim where layers are stacked."""


def open_torch_dist(directory: Path) -> OpenedMegatron:
    """The checkpoint in an iteration's directory. Reads no tensor. Raises CheckpointError."""
    _check_backend(directory)
    metadata = read_metadata(directory)
    common = _common(directory, metadata)
    sources = _sources(metadata)
    if EMBEDDING not in sources:
        raise CheckpointError(f"{directory} holds no word embeddings")
    state = common.value[0] if isinstance(common.value, list) and common.value else common.value
    if not isinstance(state, dict):
        raise CheckpointError(f"{directory} holds no state of a run beside its tensors")
    iteration = state.get("iteration", 0)
    if type(iteration) is not int or not 0 <= iteration < 10**12:
        raise CheckpointError(f"{directory}: iteration is no number of at least 0")

    def assemble(wanted: Sequence[Parameter]) -> Mapping[str, ShardedTensor]:
        require_names(wanted, sources, str(directory))
        shapes = {parameter.name: parameter.shape for parameter in wanted}
        return {
            name: _tensor(name, shapes.get(name, shapes[EMBEDDING]), source, metadata)
            for name, source in sources.items()
        }

    return OpenedMegatron(
        origin=f"{directory} (torch_dist)",
        iteration=iteration,
        arguments=read_arguments(state.get("args"), str(directory)),
        padded_vocab_size=(*metadata.tensors[sources[EMBEDDING][0]].shape, 0)[0],
        num_layers=1 + max((layer for layer in map(layer_of, sources) if layer is not None), default=-1),
        assemble=assemble,
        inert=metadata.inert | common.inert,
    )


def _check_backend(directory: Path) -> None:
    path = directory / SIGN
    if not path.exists() and (directory / _COMMON).exists():
        return  # as the first versions left it
    try:
        with naming("read", path):
            backend = json.loads(path.read_bytes())["sharded_backend"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{path} does not say in which format the checkpoint is") from None
    if backend != "torch_dist":
        raise CheckpointError(f"{directory} is in the format {quote(backend)}: only torch_dist and torch are read")


def _common(directory: Path, metadata: DistributedMetadata) -> TorchFile:
    """What is no tensor, args among it: a file of its own, since 2026 an object among the tensors."""
    if (directory / _COMMON).exists():
        return open_torch_file(directory / _COMMON)
    for name, offset in metadata.places:
        if offset is None and name.partition("/")[0] == "common_state":
            return metadata.open(name, None)
    raise CheckpointError(f"{directory} holds neither {_COMMON} nor common_state, and so no arguments")


def _sources(metadata: DistributedMetadata) -> dict[str, Source]:
    """Where each parameter is stored. Raises CheckpointError for weights that no GPT here has."""
    found: dict[str, Source] = {}
    for stored, tensor in metadata.tensors.items():
        if not stored.startswith(_WEIGHTS):
            continue  # optimizer, random numbers
        stacked = stored.startswith(_STACKED) and not stored.removeprefix(_STACKED)[:1].isdigit()
        numbered = stored.replace(_STACKED, f"{_STACKED}0.", 1) if stacked else stored
        try:
            key = canonical(numbered)
        except LookupError:
            raise CheckpointError(
                f"{metadata.directory} holds weights that no GPT here has, such as {quote(stored)[1:-1]}"
            ) from None
        if key is None:
            continue
        layers = range(tensor.shape[0] if tensor.shape else 0) if stacked else (key[0],)
        for index, layer in enumerate(layers):
            name = global_name(layer, key[1])
            if name in found:
                raise CheckpointError(f"{metadata.directory} holds {name} twice, under different names")
            found[name] = stored, index if stacked else None
    return found


def _tensor(name: str, shape: tuple[int, ...], source: Source, metadata: DistributedMetadata) -> ShardedTensor:
    """A parameter from its chunks, or from those that hold something of its layer."""
    stored, layer = source
    pieces: list[tuple[Rectangle, FileTensor]] = []
    for chunk in metadata.tensors[stored].chunks:
        if layer is None:
            pieces.append((chunk, _chunk(stored, chunk, metadata)))
        elif chunk.start and chunk.start[0] <= layer < chunk.stop[0]:
            at = layer - chunk.start[0]
            inner = Rectangle(chunk.start[1:], chunk.stop[1:])
            pieces.append((inner, _chunk(stored, chunk, metadata).view(lambda t, at=at: t[at])))  # type: ignore[misc]
    origin = str(metadata.directory)
    if not pieces:
        raise CheckpointError(f"{origin}: {name} has no chunks")
    tensor = ShardedTensor(name=name, shape=shape, pieces=pieces, origin=origin)
    tensor.check()
    return tensor


def _chunk(stored: str, chunk: Rectangle, metadata: DistributedMetadata) -> FileTensor:
    saved: Any = metadata.open(stored, chunk.start).value
    where = f"{metadata.directory}: {stored} at {chunk.start}"
    if not isinstance(saved, FileTensor) or saved.layout.numel() != chunk.volume or not saved.layout.is_contiguous():
        raise CheckpointError(f"{where} is not the tensor of shape {chunk.shape} that is said to be there")
    return saved.view(lambda t: t.view(chunk.shape))
