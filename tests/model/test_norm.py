# SPDX-License-Identifier: Apache-2.0
"""LayerNorm and RMSNorm: where epsilon stands, precision of the statistics, and whose gradients are partial."""

import pytest
import torch

from megatron_core.model.norm import Norm
from megatron_core.parallel.context import ParallelContext
from tests.rank_pool import ranks
from tests.small_model import make_factory, randn, small


def _norm(kind: str, eps: float = 1e-5, dtype: torch.dtype = torch.float64) -> Norm:
    return Norm(make_factory(small(normalization=kind, norm_epsilon=eps), dtype=dtype), "norm", 32)


def test_rms_epsilon_is_added_to_the_mean_square() -> None:
    y = _norm("RMSNorm", 1e-6)(torch.full((1, 32), 0.001, dtype=torch.float64))
    assert y[0, 0].item() == pytest.approx(0.707107, abs=1e-6)  # 0.999001 when added to the root


def test_layer_norm_epsilon_is_added_to_the_variance() -> None:
    x = torch.tensor([0.001, -0.001], dtype=torch.float64).repeat(16)
    assert _norm("LayerNorm", 1e-6)(x)[0].item() == pytest.approx(0.707107, abs=1e-6)


def test_definitions() -> None:
    x = randn(5, 32) + 3
    rms, layer = _norm("RMSNorm"), _norm("LayerNorm")
    with torch.no_grad():
        for parameter in (rms.weight, layer.weight, layer.bias):
            parameter.copy_(randn(32, seed=4))
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * rms.weight
    torch.testing.assert_close(rms(x), expected, rtol=1e-12, atol=1e-12)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_squares_beyond_fp16_do_not_overflow(dtype: torch.dtype) -> None:
    x = torch.tensor([300.0, -300.0], dtype=dtype).repeat(16)  # 300 squared is above 65504
    for kind in ("RMSNorm", "LayerNorm"):
        y = _norm(kind, dtype=dtype)(x)
        assert y.dtype == dtype and torch.equal(y, x.sign())


def test_new_norms_do_nothing_but_normalise() -> None:
    norm = _norm("LayerNorm")
    assert norm.weight.eq(1).all() and norm.bias.eq(0).all()
    assert not norm.weight.spec.decayed and not norm.bias.spec.decayed
    assert _norm("RMSNorm").bias is None


@ranks(2, tp=2)
def test_gradients_are_partial_exactly_under_sequence_parallelism(ctx: ParallelContext) -> None:
    for sequence_parallel in (False, True):
        factory = make_factory(ctx=ctx, sequence_parallel=sequence_parallel)
        assert Norm(factory, "norm", 8).weight.spec.partial == ("tp" if sequence_parallel else None)
        assert Norm(factory, "norm", 8, partial=True).weight.spec.partial == "tp"
