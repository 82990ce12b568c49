# SPDX-License-Identifier: Apache-2.0
"""Completes a bucket's gradients within one model replica: what this dp rank's microbatches say, whole on each holder.

The usual reduction adds over tp, the tied ends and dp in as few passes as it can. Whoever exchanges something else than
gradients over dp (1-bit Adam) needs the sum without the dp part, and needs it before it compresses: of a table at both
ends of the pipeline the two gradients belong together.
"""

import torch

from megatron_core.data_parallel.buckets import BucketClass
from megatron_core.parallel.collectives import all_reduce, exchange_async
from megatron_core.parallel.context import ParallelContext


def add_within_replica(grads: torch.Tensor, kind: BucketClass, ctx: ParallelContext) -> None:
    """Add in place what other ranks of this replica have computed of a bucket's gradients [n].

    All holders of the bucket must call, in one order of buckets.
    """
    if kind.partial is not None:
        all_reduce(grads, ctx.group(kind.partial))
    if kind.tied:
        _add_other_end(grads, ctx)


def _add_other_end(grads: torch.Tensor, ctx: ParallelContext) -> None:
    """Add the other copy's gradients: both ends come to the same bits, since of two numbers the order is no matter."""
    own, last = ctx.pp.coordinate, ctx.pp.size - 1
    assert last > 0 and own in (0, last), f"stage {own} of {ctx.pp.size} holds no end of a tied table"
    other = torch.empty_like(grads)
    send, receive = (True, last - own, grads), (False, last - own, other)
    for work in exchange_async([send, receive] if own == 0 else [receive, send], ctx.pp):
        work.wait()
    grads.add_(other)
