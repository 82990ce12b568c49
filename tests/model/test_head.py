# SPDX-License-Identifier: Apache-2.0
"""The loss does not depend on how the vocabulary is cut or padded, and z-loss belongs to training."""

import math

import pytest
import torch
import torch.nn.functional as F

from megatron_core.config.model import ModelConfig
from megatron_core.model.embedding import vocabulary_weight
from megatron_core.model.head import Head
from megatron_core.parallel.context import ParallelContext
from tests.rank_pool import ranks
from tests.small_model import ALONE, gathered, make_factory, make_microbatch, randn, small


def _head(config: ModelConfig, ctx: ParallelContext = ALONE) -> tuple[Head, torch.nn.Parameter]:
    factory = make_factory(config, ctx)
    weight = vocabulary_weight(factory, "head.weight")
    return Head(factory, weight), weight


@pytest.mark.parametrize("divisor", [1, 128])
@ranks({"tp": 1}, {"tp": 2}, {"tp": 4})
def test_zero_weights_cost_the_log_of_37(ctx: ParallelContext, divisor: int) -> None:
    config = small(make_vocab_size_divisible_by=divisor)
    head, weight = _head(config, ctx)
    with torch.no_grad():
        weight.zero_()
    losses = head(randn(16, 2, 32), make_microbatch(config).labels)
    assert losses.shape == (2, 16)
    assert losses.mean().item() == pytest.approx(3.610918, abs=1e-6)  # a padding row counted: ln 38 = 3.637586


def test_equals_norm_linear_cross_entropy() -> None:
    config = small()
    head, weight = _head(config)
    x, labels = randn(16, 2, 32), make_microbatch(config).labels
    logits = F.linear(F.layer_norm(x, (32,), eps=1e-5), weight[:37])
    expected = F.cross_entropy(logits.flatten(0, 1), labels.t().flatten(), reduction="none").view(16, 2).t()
    torch.testing.assert_close(head(x, labels), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("divisor", [1, 128])
@ranks({"tp": 2}, {"tp": 4})
def test_gradients_equal_one_process_and_padding_gets_none(ctx: ParallelContext, divisor: int) -> None:
    config = small(make_vocab_size_divisible_by=divisor)
    labels, found = make_microbatch(config).labels, []
    for context in (ALONE, ctx):
        head, weight = _head(config, context)
        x = randn(16, 2, 32).requires_grad_()
        head(x, labels).sum().backward()
        assert not weight.grad[weight.spec.stop - weight.spec.start :].any(), "padding rows have a gradient"
        found.append((x.grad, gathered(weight.grad, weight.spec, context)))
    for got, expected in zip(found[1], found[0]):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)


def test_z_loss_counts_in_training_alone() -> None:
    x, labels = randn(16, 2, 32), make_microbatch().labels
    plain, _ = _head(small())
    head, weight = _head(small(z_loss_coeff=0.5))
    with torch.no_grad():
        torch.testing.assert_close(head(x, labels), plain(x, labels))
        log_z = F.linear(F.layer_norm(x, (32,), eps=1e-5), weight[:37]).logsumexp(-1).t()
    torch.testing.assert_close(head(x, labels) - plain(x, labels), 0.5 * log_z.square(), rtol=1e-10, atol=1e-12)
    assert log_z.mean().item() == pytest.approx(math.log(37), abs=0.1)
