# SPDX-License-Identifier: Apache-2.0
"""That a whole run gets the right weights is proved end to end; here, when they are waited for."""

import torch
from torch import nn

from megatron_core.data_parallel.grad_reducer import GradReducer
from megatron_core.data_parallel.weight_gather import WeightGather
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.shard_spec import ShardSpec, SpecParameter, make_parameter
from tests.rank_pool import ranks


class Scale(nn.Module):
    """One parameter of 5 elements, so that shares are uneven, held as linears hold theirs."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.weights = nn.ParameterList([make_parameter(torch.zeros(5), ShardSpec(name=name, shape=(5,)))])

    @property
    def weight(self) -> SpecParameter:
        return self.weights[0]

    def forward(self) -> list[float]:
        return self.weight.tolist()


def gathering(ctx: ParallelContext, *, sharded: bool, overlap: bool) -> tuple[list[Scale], GradReducer, WeightGather]:
    modules = [Scale("first"), Scale("last")]
    reducer = GradReducer(
        [m.weight for m in modules], ctx, bucket_size=5, grad_dtype=torch.float32, overlap=False, sharded=sharded
    )
    gather = WeightGather(reducer.buckets, nn.ModuleList(modules).modules(), ctx, sharded=sharded, overlap=overlap)
    for bucket in reducer.buckets:
        bucket.owned_weights.fill_(ctx.rank + 1)
    return modules, reducer, gather


EXPECTED = [1.0, 1.0, 1.0, 2.0, 2.0]


@ranks(2)
def test_without_overlap_all_is_there_at_once(ctx: ParallelContext) -> None:
    modules, _, gather = gathering(ctx, sharded=True, overlap=False)
    gather.start()
    assert not gather._pending
    assert [module() for module in modules] == [EXPECTED] * 2


@ranks(2)
def test_what_was_begun_is_not_begun_again(ctx: ParallelContext) -> None:
    modules, reducer, gather = gathering(ctx, sharded=True, overlap=True)
    for step in range(2):
        for bucket in reducer.buckets:
            bucket.owned_weights.fill_(ctx.rank + 1 + step)
        gather.start_bucket(0)
        first = gather._pending[0]
        gather.start()
        assert gather._pending[0] is first and list(gather._pending) == [0, 1]
        gather.finish()
        assert [module() for module in modules] == [[value + step for value in EXPECTED]] * 2


@ranks(2)
def test_with_overlap_a_module_waits_for_its_own_weights(ctx: ParallelContext) -> None:
    modules, _, gather = gathering(ctx, sharded=True, overlap=True)
    gather.start()
    assert list(gather._pending) == [1, 0], "in the order in which forward comes to them"
    assert modules[0]() == EXPECTED and list(gather._pending) == [0]
    gather.finish()
    assert not gather._pending and modules[1].weight.tolist() == EXPECTED


@ranks(2)
def test_replicas_that_update_everything_gather_nothing(ctx: ParallelContext) -> None:
    modules, _, gather = gathering(ctx, sharded=False, overlap=True)
    gather.start()
    gather.finish()
    assert modules[0]() == [ctx.rank + 1.0] * 5
