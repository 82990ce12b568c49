# SPDX-License-Identifier: Apache-2.0
"""What the factory makes of a spec: values, dtype, decay, and on which ranks a gradient is partial."""

from dataclasses import replace

import pytest
import torch

from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.shard_spec import cut_spec, replicated_spec
from tests.rank_pool import ranks
from tests.small_model import ALONE, make_factory, small


def test_projections_to_the_residual_stream_start_smaller() -> None:
    assert make_factory(small(num_layers=8, init_method_std=0.04)).output_std == pytest.approx(0.01)


def test_weights_take_the_configured_deviation_unless_given_one() -> None:
    factory = make_factory(small(init_method_std=0.5), dtype=torch.float32)
    plain = factory.weight(cut_spec("a", (256, 64), 0, ALONE))
    given = factory.weight(cut_spec("a", (256, 64), 0, ALONE), 0.25)
    assert plain.std().item() == pytest.approx(0.5, rel=0.03)
    torch.testing.assert_close(given * 2, plain)
    assert plain.dtype == torch.float32 and plain.spec.decayed


def test_constants_fill_the_local_shape() -> None:
    parameter = make_factory().constant(replicated_spec("b", (3, 2), ALONE), 1.0)
    assert torch.equal(parameter, torch.ones(3, 2, dtype=torch.float64))


@ranks(2, tp=2)
def test_biases(ctx: ParallelContext) -> None:
    factory = make_factory(ctx=ctx, sequence_parallel=True)
    column, row = factory.column_bias("c", (8, 4), 0), factory.row_bias("r")
    assert column.shape == (4, 4) and (column.spec.start, column.spec.dim) == (4 * ctx.rank, 0)
    assert row.shape == (32,) and row.spec.dim is None and row.spec.counted == (ctx.rank == 0)
    assert row.spec.partial is None, "its gradient is taken from the gathered output gradient"
    assert not column.spec.decayed and not row.spec.decayed and not column.any() and not row.any()


def test_without_a_seed_weights_wait_to_be_loaded() -> None:
    factory = replace(make_factory(), seed=None)
    padded = factory.weight(cut_spec("a", (6, 4), 0, ALONE), rows=8)
    assert torch.equal(padded, torch.zeros(8, 4, dtype=torch.float64))
    assert torch.equal(factory.weight(replicated_spec("b", (3,), ALONE)), torch.zeros(3, dtype=torch.float64))
