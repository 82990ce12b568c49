# SPDX-License-Identifier: Apache-2.0
"""A small checkpoint of two ranks, for tests to read, break and load."""

from collections.abc import Sequence
from pathlib import Path

import torch

from megatron_core.checkpoint.directory import prepare, publish, step_directory
from megatron_core.checkpoint.manifest import Manifest, merge
from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.checkpoint.writer import Shard, rank_file_name, write_rank_file

STATE = {"step": 3, "loss_scale": 65536.0, "consumed_samples": 12}
CONFIG = {"model": {"num_layers": 2, "normalization": "LayerNorm"}, "data": {"split": [99, 1, 0], "seed": None}}


def tensors() -> dict[str, torch.Tensor]:
    """The whole tensors: a cut matrix, its 16-bit twin, a vector, a scalar and a mask."""
    torch.manual_seed(7)
    matrix = torch.randn(6, 10)
    return {
        "master/w": matrix,
        "model/w": matrix.bfloat16(),
        "model/norm": torch.randn(5, dtype=torch.float64),
        "adam_v/scalar": torch.tensor(2.5),
        "mask/w": matrix > 0,
    }


def shards() -> list[list[Shard]]:
    """What each of two ranks writes: columns of the matrices, and the rest by the first."""
    parts: list[list[Shard]] = [[], []]
    for name, values in tensors().items():
        cuts = [((0, 0), (6, 4)), ((0, 4), (6, 7)), ((0, 7), (6, 10))] if name.endswith("w") else []
        rectangles = [Rectangle(*cut) for cut in cuts] or [whole(values.shape)]
        for index, rectangle in enumerate(rectangles):
            part = values[rectangle.slices((0,) * values.dim())]
            parts[index % 2].append(Shard(name=name, shape=tuple(values.shape), rectangle=rectangle, values=part))
    return parts


def save(root: Path, step: int = 3, parts: Sequence[Sequence[Shard]] | None = None) -> Manifest:
    """Write and publish it as a run would."""
    attempt = prepare(root, step)
    directory = step_directory(root, step)
    written = [
        write_rank_file(directory, rank_file_name(rank, attempt), part)
        for rank, part in enumerate(shards() if parts is None else parts)
    ]
    manifest = merge(step, written, state=STATE, config=CONFIG)
    publish(root, manifest)
    return manifest
