# SPDX-License-Identifier: Apache-2.0
"""Whether data-parallel replicas still hold the same bits: memory or a link that breaks quietly shows in no loss.

Replicas start equal, get their gradients from one all-reduce and update element by element, so that weights, masters
and moments stay equal bit for bit. What tensor-parallel ranks hold in common is not compared: each computes its
gradient by itself, and CUDA kernels that add in no fixed order may make it differ in the last bit without any fault.
"""

from collections.abc import Sequence

import torch
import xxhash

from megatron_core.checkpoint.agree import gather_messages
from megatron_core.checkpoint.held import Held
from megatron_core.parallel.collectives import MAX, all_gather, all_reduce
from megatron_core.parallel.context import ParallelContext
from megatron_core.training.faults import FaultError

_CHUNK_BYTES = 64 * 2**20  # what is copied from a device to the host at once
_NAMED = 3  # tensors that a rank names
_RANKS_NAMED = 8


def check_replicas(held: Sequence[Held], ctx: ParallelContext, step: int) -> None:
    """Raise FaultError on all ranks where one differs from its replicas; it names the odd ranks and their tensors.

    A rank is odd unless most of its replicas hold the same; of two that differ both are. All ranks must call.

    held: what is replicated over dp, in one order on all replicas.
    """
    own = torch.tensor([_digest(tensor.values) for tensor in held], dtype=torch.int64, device=ctx.device)
    digests = all_gather(own, ctx.dp).view(ctx.dp.size, len(held))  # [dp, tensors]
    equal = (digests == own).sum(dim=0)  # replicas that hold what this one holds, by tensor
    odd = [tensor.name for tensor, count in zip(held, equal.tolist()) if 2 * count <= ctx.dp.size]
    odd_ranks = torch.tensor([len(odd) > 0], dtype=torch.int64, device=ctx.device)
    if not int(all_reduce(odd_ranks, ctx.world, MAX)):
        return
    texts = gather_messages(_describe(odd, ctx).encode() if odd else b"", ctx.world, ctx)
    said = [text.decode() for text in texts if text]
    more = f"; and {len(said) - _RANKS_NAMED} more ranks" if len(said) > _RANKS_NAMED else ""
    raise FaultError(
        f"step {step}: data-parallel replicas differ: {'; '.join(said[:_RANKS_NAMED])}{more}. Memory or a link is "
        "broken: leave those devices out and load a checkpoint no newer than the last check that passed."
    )


def _digest(values: torch.Tensor) -> int:
    """xxh3 of a tensor's bytes as a signed 64-bit number."""
    hasher = xxhash.xxh3_64()
    for chunk in values.detach().contiguous().view(-1).view(torch.uint8).split(_CHUNK_BYTES):
        hasher.update(chunk.cpu().numpy())
    return hasher.intdigest() - 2**63


def _describe(odd: Sequence[str], ctx: ParallelContext) -> str:
    place = f"dp {ctx.dp.coordinate}, tp {ctx.tp.coordinate}, pp {ctx.pp.coordinate}"
    more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
    return f"rank {ctx.rank} ({place}) in {', '.join(odd[:_NAMED])}{more}"
