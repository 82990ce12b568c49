# SPDX-License-Identifier: Apache-2.0
"""Sums within a replica: over tp where gradients are partial, over both ends of the pipeline where a table is tied."""

import torch

from megatron_core.data_parallel.buckets import BucketClass
from megatron_core.data_parallel.replica_gradients import add_within_replica
from megatron_core.parallel.context import ParallelContext
from tests.rank_pool import ranks


@ranks({"tp": 2, "dp": 2})
def test_partial_gradients_are_summed_over_tp_and_not_over_dp(ctx: ParallelContext) -> None:
    grads = torch.full((3,), float(1 + ctx.rank))
    add_within_replica(grads, BucketClass(False, "tp", False), ctx)
    assert grads.tolist() == [float(sum(1 + rank for rank in ctx.tp.ranks))] * 3
    add_within_replica(grads, BucketClass(True, None, False), ctx)
    assert grads.tolist() == [float(sum(1 + rank for rank in ctx.tp.ranks))] * 3


@ranks({"pp": 2, "dp": 2}, {"pp": 3})
def test_both_ends_of_a_tied_table_get_their_own_replicas_sum(ctx: ParallelContext) -> None:
    grads = torch.full((3,), float(1 + ctx.rank))
    ends = (ctx.pp.ranks[0], ctx.pp.ranks[-1])
    if ctx.rank in ends:
        add_within_replica(grads, BucketClass(True, None, True), ctx)
        assert grads.tolist() == [float(sum(1 + rank for rank in ends))] * 3
