# SPDX-License-Identifier: Apache-2.0
"""Slices of a parameter: contiguous, disjoint, complete."""

import pytest
import torch
from torch import nn

from megatron_core.parallel.context import Group, ParallelContext, single_process_context
from megatron_core.parallel.rank_grid import RankGrid
from megatron_core.tensor_parallel.shard_spec import (
    ShardSpec,
    cut_spec,
    even_slice,
    make_parameter,
    replicated_spec,
    spec_parameters,
)


def _context(tp: int, coordinate: int) -> ParallelContext:
    group = Group("tp", tuple(range(tp)), coordinate)
    return ParallelContext(grid=RankGrid(tp=tp), rank=coordinate, device=torch.device("cpu"), groups={"tp": group})


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_slices_put_together_are_the_whole(dim: int, tp: int) -> None:
    whole = torch.randn(4, 8, 12)
    specs = [cut_spec("w", (4, 8, 12), dim, _context(tp, rank)) for rank in range(tp)]
    assert torch.equal(torch.cat([spec.take(whole) for spec in specs], dim), whole)
    assert all(spec.take(whole).shape == spec.local_shape for spec in specs)


def test_a_length_that_cannot_be_cut_evenly_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="6 cannot be cut evenly over 4 ranks"):
        even_slice(6, _context(4, 0).tp)


def test_padding_rows_are_not_real() -> None:
    spec = ShardSpec(name="w", shape=(37, 2), dim=0, start=30, stop=37)
    local = torch.randn(10, 2)
    assert spec.local_shape == (7, 2)
    assert torch.equal(spec.real(local), local[:7])


def test_replicas_are_counted_once() -> None:
    specs = [replicated_spec("b", (8,), _context(4, rank), partial=True) for rank in range(4)]
    assert [spec.counted for spec in specs] == [True, False, False, False]
    assert {spec.partial for spec in specs} == {"tp"}
    assert specs[0].local_shape == (8,) and not specs[0].decayed


def test_alone_no_gradient_is_partial() -> None:
    assert replicated_spec("b", (8,), single_process_context(), partial=True).partial is None


def test_a_parameter_reports_gradients_to_its_listener() -> None:
    parameter = make_parameter(torch.zeros(2), replicated_spec("b", (2,), single_process_context()))
    parameter.gradient_ready()
    heard = []
    parameter.on_gradient = heard.append
    parameter.gradient_ready()
    assert heard == [parameter] and parameter.requires_grad


def test_an_accumulator_is_asked_for_when_it_is_used() -> None:
    parameter = make_parameter(torch.zeros(2), replicated_spec("b", (2,), single_process_context()))
    assert parameter.main_grad is None
    opened: list[torch.Tensor] = []

    def accumulator() -> torch.Tensor:
        opened.append(torch.zeros(2))
        return opened[-1]

    parameter.accumulator = accumulator
    assert not opened
    assert parameter.main_grad is opened[0]
    parameter.main_grad = memory = torch.ones(2)
    assert parameter.main_grad is memory and len(opened) == 1


def test_parameters_without_a_spec_are_bugs() -> None:
    with pytest.raises(AssertionError, match="parameter weight has no ShardSpec"):
        list(spec_parameters(nn.Linear(2, 2)))
