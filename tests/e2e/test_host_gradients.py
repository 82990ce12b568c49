# SPDX-License-Identifier: Apache-2.0
"""Public cases of the optimizer with ZeRO-1, with gradients that stay on the device and such that leave it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.adamw import adamw

from megatron_core.config.optim import OptimConfig
from megatron_core.data_parallel.grad_reducer import GradReducer
from megatron_core.data_parallel.weight_gather import WeightGather
from megatron_core.optim.host_offload import HostOffloadAdamW
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.shard_spec import ShardSpec, make_parameter
from megatron_core.training.build import rewound
from megatron_core.training.train_step import train_step
from tests.e2e.proof import FAMILIES, start_rank, train_rank
from tests.e2e.test_resume import DROPOUT, straight_and_resumed
from tests.rank_pool import ranks, run_ranks

ZERO = "--use-distributed-optimizer"
HOST = "--optimizer-cpu-offload --offload-gradients host"
HYPER = {"beta1": 0.9, "beta2": 0.999, "lr": 0.1, "weight_decay": 0.1, "eps": 1e-8}


@pytest.mark.parametrize("precision", ["", "--bf16"])
@pytest.mark.parametrize("layout", ["", ZERO])
def test_offload_changes_no_bit_over_data_parallel_ranks(precision: str, layout: str) -> None:
    """OPT-03, in 10 steps of one microbatch a rank: of several, the order of the sum is another."""
    flags = f"{FAMILIES['gpt2']} --micro-batch-size 2 --global-batch-size 4 --num-layers 2 {precision} {layout}"
    expected, found = (run_ranks(train_rank, 2, f"{flags} {more}", 10)[0] for more in ("", HOST))
    assert (found.losses, found.norms) == (expected.losses, expected.norms)
    assert all(np.array_equal(found.weights[name], tensor) for name, tensor in expected.weights.items())


@pytest.mark.parametrize("sharded", [False, True])
@ranks(2)
def test_equal_tensors_in_two_buckets_stay_equal_and_follow_torch(ctx: ParallelContext, sharded: bool) -> None:
    """OPT-04: a counter that every tensor moved would show as another bias correction."""
    parameters = [make_parameter(torch.ones(5), ShardSpec(name=f"w{i}", shape=(5,))) for i in range(2)]
    reducer = GradReducer(
        parameters, ctx, bucket_size=5, grad_dtype=torch.float32, overlap=True, sharded=sharded, on_host=True
    )
    gather = WeightGather(reducer.buckets, [], ctx, sharded=sharded, overlap=False)
    optimizer = HostOffloadAdamW(reducer.buckets, OptimConfig(weight_decay=0.1), threads=1)
    expected, m, v, steps = torch.ones(5), torch.zeros(5), torch.zeros(5), torch.zeros(())
    for step, factor in enumerate([1.0, 0.0, 1.0, -2.0, 0.5]):
        reducer.begin_step(2)
        for microbatch in range(2):
            gradient = torch.arange(5.0) * factor + microbatch + ctx.rank
            for parameter in reversed(parameters):
                (parameter * gradient).sum().backward()
        reducer.finish()
        optimizer.step(applied_steps=step, lr=0.1, weight_decay=0.1, grad_factor=0.25)
        gather.start()
        # torch.optim.AdamW would import torch's compiler in each rank.
        grad = torch.arange(5.0) * factor + 1
        adamw([expected], [grad], [m], [v], [], [steps], foreach=False, amsgrad=False, maximize=False, **HYPER)
        assert torch.equal(*parameters), step
        torch.testing.assert_close(parameters[0].data, expected, rtol=1e-6, atol=1e-7)
    optimizer.close()


def norms_of_a_repeated_batch(rank: int, world_size: int, flags: str) -> list[float]:
    """The gradient norm of the same batch three times, at a learning rate that moves nothing."""
    run, state = start_rank(rank, world_size, f"{flags} --lr 1e-30")
    norms = []
    for _ in range(3):
        run = rewound(run, state)
        norms.append(train_step(run, state)[1].grad_norm)
    run.source.close()
    return norms


@pytest.mark.parametrize("more", ["", ZERO, HOST, f"{ZERO} {HOST}"])
def test_each_step_s_gradient_is_its_own(more: str) -> None:
    """OPT-06: three times the same norm in bf16 (not once, twice, three times it), and that of fp32 to 2 %."""
    flags = f"{FAMILIES['gpt2']} --num-layers 2"
    first, second, third = run_ranks(norms_of_a_repeated_batch, 2, f"{flags} --bf16 {more}")[0]
    assert first == second == third
    assert first == pytest.approx(norms_of_a_repeated_batch(0, 1, flags)[0], rel=0.02)


@pytest.mark.parametrize("layout", ["alone", "dp2-zero"])
def test_an_interruption_changes_nothing(layout: str, tmp_path: Path) -> None:
    """To the bit, with several microbatches in a rank's sums."""
    straight_and_resumed(tmp_path, layout, f"{DROPOUT} --global-batch-size 8 --bf16 {HOST}", at=5, steps=10)
