# SPDX-License-Identifier: Apache-2.0
"""A run whose tensors are known numbers at every layout, saved as all ranks would, for tests to load elsewhere."""

import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from megatron_core.checkpoint.directory import prepare, publish, step_directory
from megatron_core.checkpoint.held import Held, held_tensors
from megatron_core.checkpoint.manifest import merge
from megatron_core.checkpoint.manifest_json import decode_rank_file, encode_rank_file
from megatron_core.checkpoint.saved_config import config_to_json
from megatron_core.checkpoint.writer import Shard, rank_file_name, write_rank_file
from megatron_core.parallel.collectives import barrier
from megatron_core.parallel.context import ParallelContext
from megatron_core.training.build import Run
from megatron_core.training.state import RunState
from megatron_core.training.state_json import state_to_json


def numbers(name: str, shape: Sequence[int], salt: int = 0) -> torch.Tensor:
    """The whole tensor of a name, in fp64: any number is another one, in fp32 too."""
    section, _, parameter = name.partition("/")
    kind = "weight" if section in ("model", "master") else section  # a master holds the numbers of its weight
    seed = zlib.crc32(f"{kind}/{parameter}/{salt}".encode())
    values = torch.rand(math.prod(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.float().double().view(*shape)


def fill_with_numbers(run: Run, salt: int = 0) -> None:
    """Give every tensor of a rank its known numbers; 16-bit weights are cast from the numbers of their masters."""
    for tensor in held_tensors(run.reducer.buckets, run.optimizer, with_optim=True):
        tensor.values.copy_(part(tensor, salt))


def part(tensor: Held, salt: int = 0) -> torch.Tensor:
    """The numbers that belong into a held tensor, in fp64."""
    return numbers(tensor.name, tensor.shape, salt)[tensor.rectangle.slices((0,) * len(tensor.shape))]


def save_run(run: Run, state: RunState, root: Path, *, with_optim: bool = True) -> None:
    """Write and publish the state of all ranks, without asynchrony; dp coordinate 0 writes."""
    ctx, attempt = run.ctx, [0]
    if ctx.rank == 0:
        attempt = [prepare(root, state.step)]
    if ctx.world.size > 1:
        dist.broadcast_object_list(attempt)
    held = held_tensors(run.reducer.buckets, run.optimizer, with_optim=with_optim)
    shards = [
        Shard(name=tensor.name, shape=tensor.shape, rectangle=tensor.rectangle, values=tensor.values)
        for tensor in held
        if tensor.counted and ctx.dp.coordinate == 0
    ]
    written = write_rank_file(step_directory(root, state.step), rank_file_name(ctx.rank, attempt[0]), shards)
    texts = _gathered(encode_rank_file(written), ctx)
    if ctx.rank == 0:
        files = [decode_rank_file(text) for text in texts]
        saved_state, config = state_to_json(state, run.config), config_to_json(run.config)
        publish(root, merge(state.step, files, state=saved_state, config=config))
    barrier(ctx.world)


def _gathered(text: bytes, ctx: ParallelContext) -> list[bytes]:
    texts = [text] * ctx.world.size
    if ctx.world.size > 1:
        dist.all_gather_object(texts, text)
    return texts
