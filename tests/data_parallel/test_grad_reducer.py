# SPDX-License-Identifier: Apache-2.0
"""After a step every rank of a dp group holds the complete accumulation, with overlap or without, and counted once."""

import pytest
import torch

from megatron_core.data_parallel.grad_reducer import GradReducer, counted_grads, counted_weights
from megatron_core.model.gpt import ChunkPlan, build_chunks
from megatron_core.optim.grad_clip import sum_of_squares
from megatron_core.parallel.collectives import all_reduce
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.shard_spec import ShardSpec, SpecParameter, make_parameter, spec_parameters
from tests.rank_pool import ranks
from tests.small_model import ALONE, assert_same, gathered, make_factory, make_microbatch, make_model, small


def _parameter(name: str = "w", **spec: object) -> SpecParameter:
    return make_parameter(torch.ones(2), ShardSpec(name=name, shape=(2,), **spec))


def _reducer(parameters: list[SpecParameter], ctx: ParallelContext = ALONE, *, overlap: bool = False) -> GradReducer:
    dtype = parameters[0].dtype
    return GradReducer(parameters, ctx, bucket_size=500, grad_dtype=dtype, overlap=overlap)


@pytest.mark.parametrize("overlap", [False, True])
@ranks(2)
def test_ranks_end_with_the_complete_accumulation(ctx: ParallelContext, overlap: bool) -> None:
    parameter = _parameter()
    reducer = _reducer([parameter], ctx, overlap=overlap)
    inputs = [[1.0, 3.0], [2.0, 5.0]][ctx.rank]  # sums 4 and 7, of which the mean is 5.5
    for _ in range(2):  # the second step starts from cleared buckets
        reducer.begin_step(2)
        for value in inputs:
            (parameter * value / ctx.dp.size).sum().backward()
        reducer.finish()
        assert parameter.main_grad.tolist() == [5.5, 5.5] and parameter.grad is None


@pytest.mark.parametrize("overlap", [False, True])
@ranks({"tp": 2, "dp": 2}, {"dp": 4})
def test_the_model_has_the_gradient_of_the_global_batch(ctx: ParallelContext, overlap: bool) -> None:
    config, microbatches = small(make_vocab_size_divisible_by=1), 2

    def accumulate(context: ParallelContext, seeds: range) -> dict[str, torch.Tensor]:
        model = make_model(make_factory(config, context, sequence_parallel=True))
        parameters = list(spec_parameters(model))
        reducer = GradReducer(parameters, context, bucket_size=5000, grad_dtype=torch.float64, overlap=overlap)
        assert len(reducer.buckets) > 3
        reducer.begin_step(len(seeds))
        for seed in seeds:
            model(None, make_microbatch(config, seed=seed)).sum().backward()
        reducer.finish()
        return {p.spec.name: gathered(p.main_grad, p.spec, context) for p in parameters}

    mine = range(ctx.dp.coordinate * microbatches, (ctx.dp.coordinate + 1) * microbatches)
    assert_same(accumulate(ctx, mine), accumulate(ALONE, range(ctx.dp.size * microbatches)))


@ranks(2)
def test_overlap_starts_during_backward_in_the_order_of_the_plan(ctx: ParallelContext) -> None:
    first, last = _parameter("first"), _parameter("last")
    reducer = GradReducer([first, last], ctx, bucket_size=2, grad_dtype=torch.float32, overlap=True)
    reducer.begin_step(1)
    # This rank's gradients come in the wrong order on rank 1; collectives must match all the same.
    for parameter in [(last, first), (first, last)][ctx.rank]:
        parameter.sum().backward()
    assert len(reducer._started) == 2
    reducer.finish()
    assert first.main_grad.tolist() == last.main_grad.tolist() == [2.0, 2.0]


@ranks(2, pp=2)
def test_tied_tables_meet_at_the_end(ctx: ParallelContext) -> None:
    config = small(num_layers=2)
    plans = [ChunkPlan(range(1), True, False), ChunkPlan(range(1, 2), False, True)]
    batch = make_microbatch(config)
    (whole,) = build_chunks(make_factory(config), [ChunkPlan(range(2))])
    (chunk,) = build_chunks(make_factory(config, ctx), [plans[ctx.pp.coordinate]])
    (first,) = build_chunks(make_factory(config), plans[:1])
    (last,) = build_chunks(make_factory(config), plans[1:])
    reducer = _reducer(list(spec_parameters(chunk)), ctx, overlap=True)
    reducer.begin_step(1)
    # Each rank runs the other stage itself, so that this test needs no pipeline.
    first, last = (chunk, last) if ctx.is_first_stage else (first, chunk)
    last(first(None, batch), batch).sum().backward()
    reducer.finish()
    whole(None, batch).sum().backward()
    table = chunk.embedding.tokens.weight if ctx.is_first_stage else chunk.head.linear.weights[0]
    torch.testing.assert_close(table.main_grad, whole.embedding.tokens.weight.grad, rtol=1e-11, atol=1e-13)


@ranks(2, tp=2)
def test_partial_gradients_are_summed_and_complete_ones_are_not(ctx: ParallelContext) -> None:
    partial, complete = _parameter("a", partial="tp"), _parameter("b")
    reducer = _reducer([partial, complete], ctx)
    reducer.begin_step(1)
    (partial.sum() * (ctx.rank + 1) + complete.sum() * 5).backward()
    reducer.finish()
    assert partial.main_grad.tolist() == [3.0, 3.0] and complete.main_grad.tolist() == [5.0, 5.0]


@ranks(2, tp=2)
def test_norms_count_shards_and_replicas_once(ctx: ParallelContext) -> None:
    shard = make_parameter(torch.ones(1), ShardSpec(name="s", shape=(2,), dim=0, start=ctx.rank, stop=ctx.rank + 1))
    replica = make_parameter(torch.ones(1), ShardSpec(name="r", shape=(1,), counted=ctx.rank == 0))
    reducer = _reducer([shard, replica], ctx)
    reducer.begin_step(1)
    (shard * (3.0, 4.0)[ctx.rank] + replica * 12.0).sum().backward()
    reducer.finish()
    squares = torch.tensor([sum_of_squares(counted_grads(reducer.buckets))], dtype=torch.float64)
    assert all_reduce(squares, ctx.world).sqrt().item() == pytest.approx(13.0)  # 17.69 with the replica twice
    assert sum(weights.numel() for weights in counted_weights(reducer.buckets)) == 2 - ctx.rank


@ranks(2)
def test_data_parallel_copies_do_not_inflate_the_norm(ctx: ParallelContext) -> None:
    parameter = make_parameter(torch.ones(1), ShardSpec(name="w", shape=(1,)))
    reducer = _reducer([parameter], ctx)
    reducer.begin_step(1)
    (parameter * 0.8 / ctx.dp.size).sum().backward()
    reducer.finish()
    assert sum_of_squares(counted_grads(reducer.buckets)) ** 0.5 == pytest.approx(0.8)  # not 1.131


def test_missing_and_surplus_gradients_are_bugs() -> None:
    parameter, never = _parameter(), _parameter("never")
    reducer = _reducer([parameter, never])
    reducer.begin_step(1)
    parameter.sum().backward()
    with pytest.raises(AssertionError, match=r"1 gradients never came for \['never', 'w'\]"):
        reducer.finish()
    never.sum().backward()
    reducer.finish()
    with pytest.raises(AssertionError, match="w got more gradients than the step has microbatches"):
        parameter.sum().backward()


def test_16bit_models_accumulate_in_fp32() -> None:
    parameter = make_parameter(torch.ones(1, dtype=torch.bfloat16), ShardSpec(name="w", shape=(1,)))
    reducer = GradReducer([parameter], ALONE, bucket_size=10, grad_dtype=torch.float32, overlap=False)
    reducer.begin_step(257)
    for _ in range(257):
        parameter.sum().backward()
    reducer.finish()
    assert parameter.main_grad.item() == 257.0  # bf16 stops at 256


@pytest.mark.parametrize("overlap", [False, True])
@ranks({"tp": 2, "dp": 2}, {"dp": 4})
def test_each_owner_has_its_share_of_the_gradient_and_all_together_count_it_once(
    ctx: ParallelContext, overlap: bool
) -> None:
    config = small(make_vocab_size_divisible_by=1)
    squares = {}
    for sharded in (False, True):
        parameters = list(spec_parameters(make_model(make_factory(config, ctx))))
        reducer = GradReducer(
            parameters, ctx, bucket_size=5000, grad_dtype=torch.float64, overlap=overlap, sharded=sharded
        )
        reducer.begin_step(1)
        random = torch.Generator().manual_seed(ctx.rank)
        for parameter in reversed(parameters):
            parameter.main_grad.add_(torch.randn(parameter.shape, generator=random, dtype=torch.float64))
            for _ in range(parameter.spec.gradients):
                parameter.gradient_ready()
        reducer.finish()
        own = sum_of_squares(counted_grads(reducer.buckets)) if reducer.counts else 0.0
        squares[sharded] = float(all_reduce(torch.tensor([own], dtype=torch.float64), ctx.world))
        if not sharded:
            whole = {p.spec.name: p.main_grad.clone() for p in parameters}
    for bucket in reducer.buckets:
        for spec, first, grads in bucket.owned_views(bucket.owned_grads):
            torch.testing.assert_close(grads, whole[spec.name].reshape(-1)[first : first + len(grads)])
    assert squares[True] == pytest.approx(squares[False], rel=1e-12)


@pytest.mark.parametrize("sharded", [False, True])
@ranks({"tp": 2, "dp": 2}, {"dp": 4})
def test_streamed_gradients_come_to_those_that_stay(ctx: ParallelContext, sharded: bool) -> None:
    config = small(make_vocab_size_divisible_by=1)

    def accumulate(on_host: bool) -> GradReducer:
        model = make_model(make_factory(config, ctx, sequence_parallel=True))
        reducer = GradReducer(
            spec_parameters(model),
            ctx,
            bucket_size=2500,
            grad_dtype=torch.float64,
            overlap=True,
            sharded=sharded,
            on_host=on_host,
        )
        for step in range(2):  # the second step starts anew
            reducer.begin_step(3)
            for microbatch in range(3):
                model(None, make_microbatch(config, seed=ctx.dp.coordinate + 10 * microbatch + step)).sum().backward()
            reducer.finish()
        return reducer

    streamed, staying = accumulate(True), accumulate(False)
    assert sum(bucket.stream is not None for bucket in streamed.buckets) > 3
    for one, other in zip(streamed.buckets, staying.buckets, strict=True):
        torch.testing.assert_close(one.owned_grads, other.owned_grads, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(counted_grads(streamed.buckets), counted_grads(staying.buckets), rtol=1e-11, atol=1e-13)
    largest = max(len(bucket.weights) for bucket in streamed.buckets if bucket.stream is not None)
    resident = sum(len(bucket.weights) for bucket in streamed.buckets if bucket.stream is None)
    assert sum(map(len, streamed.device_memory)) == 2 * largest + resident
    assert sum(map(len, staying.device_memory)) == sum(len(bucket.weights) for bucket in staying.buckets)
    owned = sum(len(bucket.owned_weights) for bucket in streamed.buckets if bucket.stream is not None)
    assert sum(map(len, streamed.host_memory)) == owned and not staying.host_memory


def test_microbatches_may_come_in_each_other_s_way() -> None:
    """As with W actions: what leaves together is of several microbatches, and what has left is the step's sum."""
    first, second = _parameter("first"), _parameter("second")
    reducer = GradReducer([first, second], ALONE, bucket_size=10, grad_dtype=torch.float32, overlap=True, on_host=True)
    (bucket,) = reducer.buckets
    reducer.begin_step(3)
    for parameter, value in [(first, 1), (first, 2), (second, 3), (first, 4), (second, 5), (second, 6)]:
        (parameter * value).sum().backward()
    reducer.finish()
    assert bucket.owned_grads.tolist() == [3 + 5 + 6] * 2 + [1 + 2 + 4] * 2


def test_a_streamed_gradient_that_never_came_is_a_bug() -> None:
    parameter, never = _parameter(), _parameter("never")
    reducer = GradReducer(
        [parameter, never], ALONE, bucket_size=10, grad_dtype=torch.float32, overlap=True, on_host=True
    )
    reducer.begin_step(1)
    parameter.sum().backward()
    with pytest.raises(AssertionError, match=r"1 gradients never came for \['never', 'w'\]"):
        reducer.finish()
