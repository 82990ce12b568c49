# SPDX-License-Identifier: Apache-2.0
"""Turns the gradients of one rank's microbatches into the gradient of the global batch, bucket by bucket.

Every gradient contribution is added to its bucket and counted. A bucket is complete when all contributions of all
microbatches have come, whatever the schedule: nothing has to be told which backward is the last one. With overlap its
reduction then starts while backward goes on; buckets start in the order of their plan on every rank, so that their
collectives match. Reduction is a sum: the loss is divided by the batch beforehand.

Gradients that accumulate on the host are reduced each time that a microbatch's are complete, in the order in which that
happens: it is the order of the schedule, which all ranks that hold the same stage share.
"""

from collections.abc import Iterable, Sequence

import torch

from megatron_core.data_parallel.buckets import Bucket, plan_buckets
from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.data_parallel.gradient_pool import GradientPool
from megatron_core.data_parallel.replica_gradients import add_within_replica
from megatron_core.parallel.collectives import DONE, Work, all_reduce, all_reduce_async, reduce_scatter_in_place
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.shard_spec import SpecParameter


class GradReducer:
    """Owns the buckets of all chunks of one rank."""

    def __init__(
        self,
        parameters: Iterable[SpecParameter],
        ctx: ParallelContext,
        *,
        bucket_size: int,
        grad_dtype: torch.dtype,
        overlap: bool,
        sharded: bool = False,
        on_host: bool = False,
    ) -> None:
        """`sharded`: each dp rank owns a range of every bucket (ZeRO-1) and gets the reduced gradient of that alone.

        on_host: gradients leave for accumulators in host memory as backward makes them, where their class allows it.
        """
        self._ctx, self._overlap, self.sharded = ctx, overlap, sharded
        self._over_dp = True
        ordered = list(parameters)
        plan = plan_buckets([p.spec for p in ordered], [p.numel() for p in ordered], bucket_size)
        owner = (ctx.dp.coordinate, ctx.dp.size) if sharded else (0, 1)
        self._pool = _pool_for(plan, ordered, grad_dtype, owner[1]) if on_host else None
        self.buckets = [
            FlatBucket(bucket, ordered, grad_dtype, owner, self._pool if bucket.kind.streamable else None)
            for bucket in plan
        ]
        self._resident = [number for number, bucket in enumerate(self.buckets) if bucket.stream is None]
        self._missing = [0] * len(self.buckets)
        self._started: list[Work] = []
        self._bucket_of = {id(p): number for number, bucket in enumerate(self.buckets) for p in bucket.parameters}
        for parameter in ordered:
            parameter.on_gradient = self._count
            parameter.register_post_accumulate_grad_hook(_move_to_main_grad)

    @property
    def counts(self) -> bool:
        """Whether this rank's owned ranges count in sums over the model: not where another dp rank owns the same."""
        return self.sharded or self._ctx.dp.coordinate == 0

    @property
    def parameters(self) -> list[SpecParameter]:
        """All parameters of the rank, each once, bucket by bucket."""
        return [parameter for bucket in self.buckets for parameter in bucket.parameters]

    @property
    def device_memory(self) -> list[torch.Tensor]:
        """All that gradients take of the device."""
        resident = [self.buckets[number].grads for number in self._resident]
        return resident if self._pool is None else [*resident, *self._pool.memory]

    @property
    def host_memory(self) -> list[torch.Tensor]:
        """The accumulators of streamed buckets."""
        return [bucket.stream.owned for bucket in self.buckets if bucket.stream is not None]

    def begin_step(self, num_microbatches: int, *, over_dp: bool = True) -> None:
        """Clear the buckets and expect `num_microbatches` backwards through every chunk.

        Without `over_dp` they end up with the gradient of this rank's own replica of the model.
        """
        self._started, self._over_dp = [], over_dp
        assert over_dp or self._pool is None, "streamed gradients are reduced over dp"
        for number, bucket in enumerate(self.buckets):
            if bucket.stream is None:
                bucket.grads.zero_()
            else:
                bucket.stream.begin_step()
            self._missing[number] = num_microbatches * bucket.contributions

    def _count(self, parameter: SpecParameter) -> None:
        number = self._bucket_of[id(parameter)]
        self._missing[number] -= 1
        assert self._missing[number] >= 0, f"{parameter.spec.name} got more gradients than the step has microbatches"
        bucket = self.buckets[number]
        if bucket.stream is None:
            while self._overlap and self._next_is_complete():
                self._start_next()
        elif self._missing[number] % bucket.contributions == 0:
            # As many as a microbatch has, though a schedule that puts some of them off may have them of several.
            bucket.stream.send(self._reduce_over_dp(bucket))

    def _next_is_complete(self) -> bool:
        if len(self._started) == len(self._resident):
            return False
        number = self._resident[len(self._started)]
        # A tied bucket waits for `finish`: its partner stage may still be waiting for what this stage sends later.
        return self._missing[number] == 0 and not self.buckets[number].kind.tied

    def _start_next(self) -> None:
        bucket = self.buckets[self._resident[len(self._started)]]
        if not self._over_dp:
            add_within_replica(bucket.grads, bucket.kind, self._ctx)
            self._started.append(DONE)
            return
        if bucket.kind.partial is not None:
            all_reduce(bucket.grads, self._ctx.group(bucket.kind.partial))
        if bucket.kind.tied:
            # The two copies of a tied table add up in the same sum as the dp ranks: one pass over it instead of two.
            self._started.append(all_reduce_async(bucket.grads, self._ctx.group("tied")))
        else:
            self._started.append(self._reduce_over_dp(bucket))

    def _reduce_over_dp(self, bucket: FlatBucket) -> Work:
        reduce = reduce_scatter_in_place if self.sharded else all_reduce_async
        return reduce(bucket.grads, self._ctx.dp)

    def finish(self) -> None:
        """Start what has not started and wait for all; what a rank owns is then the batch's (or replica's) gradient."""
        for bucket, missing in zip(self.buckets, self._missing):
            assert missing == 0, f"{missing} gradients never came for {[p.spec.name for p in bucket.parameters]}"
        while len(self._started) < len(self._resident):
            self._start_next()
        for work in self._started:
            work.wait()
        if self._pool is not None:
            self._pool.finish()


def _move_to_main_grad(parameter: torch.Tensor) -> None:
    """Add what autograd accumulated (norms, biases, positions) to the bucket and count it."""
    assert isinstance(parameter, SpecParameter), "only parameters with a spec are hooked"
    if parameter.grad is None:
        return  # of a linear's weight: it was added and counted where it was made
    total = parameter.main_grad
    assert total is not None, f"{parameter.spec.name} has no bucket"
    total.add_(parameter.grad)
    parameter.grad = None
    parameter.gradient_ready()


def _pool_for(
    plan: Sequence[Bucket], parameters: Sequence[SpecParameter], dtype: torch.dtype, owners: int
) -> GradientPool | None:
    """What fits the largest bucket that is streamed; None if there is none."""
    sizes = [bucket.padded(owners) for bucket in plan if bucket.kind.streamable]
    if not sizes:
        return None
    return GradientPool(max(sizes), max(sizes) // owners, dtype, parameters[0].device)


def counted_grads(buckets: Sequence[FlatBucket]) -> list[torch.Tensor]:
    """Views of all gradient elements that this rank counts in sums over the model, where `GradReducer.counts`."""
    return [grads for bucket in buckets for grads in bucket.counted_grads]


def counted_weights(buckets: Sequence[FlatBucket]) -> list[torch.Tensor]:
    """Views of all weights that this rank counts in sums over the model, where `GradReducer.counts`."""
    return [bucket.weights[start:stop] for bucket in buckets for start, stop in bucket.counted_ranges]
