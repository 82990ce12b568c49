# SPDX-License-Identifier: Apache-2.0
"""Weight gradients: at once or deferred, into main_grad with a signal, or handed to autograd."""

import pytest
import torch

from megatron_core.parallel.context import single_process_context
from megatron_core.tensor_parallel.shard_spec import SpecParameter, make_parameter, replicated_spec
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue, accumulate
from tests.small_model import randn


def _weight() -> SpecParameter:
    """[2, 3, 4]: 6 outputs, 4 inputs."""
    return make_parameter(randn(2, 3, 4), replicated_spec("w", (2, 3, 4), single_process_context()))


def test_without_a_bucket_autograd_gets_the_gradient() -> None:
    grad, x = randn(5, 2, 6, seed=1), randn(5, 2, 4, seed=2)
    expected = torch.einsum("sbm,sbk->mk", grad, x).view(2, 3, 4)
    got = accumulate(_weight(), grad, x)
    assert got is not None
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


def test_with_a_bucket_it_adds_and_signals() -> None:
    weight, heard = _weight(), []
    weight.main_grad, weight.on_gradient = torch.ones(2, 3, 4, dtype=torch.float64), heard.append
    grad, x = randn(5, 2, 6, seed=1), randn(5, 2, 4, seed=2)
    assert accumulate(weight, grad, x) is None
    expected = 1 + torch.einsum("sbm,sbk->mk", grad, x).view(2, 3, 4)
    torch.testing.assert_close(weight.main_grad, expected, rtol=1e-13, atol=1e-13)
    assert heard == [weight]


def test_closures_run_at_once_unless_deferred() -> None:
    queue, ran = WeightGradientQueue(), []
    result = torch.zeros(1)

    def closure() -> list[torch.Tensor | None]:
        ran.append(1)
        return [result]

    assert queue.run(closure, 1) == [result] and not queue.deferring
    with queue.deferred() as pending:
        assert queue.deferring
        assert queue.run(closure, 2) == [None, None]
    assert (len(ran), pending, queue.deferring) == (1, [closure], False)


def test_an_error_ends_the_deferral() -> None:
    queue = WeightGradientQueue()
    with pytest.raises(ValueError), queue.deferred():
        raise ValueError
    assert not queue.deferring


def test_deferrals_do_not_nest() -> None:
    queue = WeightGradientQueue()
    with queue.deferred(), pytest.raises(AssertionError, match="deferred already"), queue.deferred():
        pass
