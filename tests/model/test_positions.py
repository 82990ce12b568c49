# SPDX-License-Identifier: Apache-2.0
"""Which positions a rank holds, and the table of learned ones."""

import pytest
import torch

from megatron_core.model.positions import LearnedPositions, local_positions
from megatron_core.parallel.context import Group
from tests.small_model import make_factory, small


@pytest.mark.parametrize("coordinate", range(4))
def test_sequence_parallel_ranks_hold_equal_runs(coordinate: int) -> None:
    tp = Group("tp", (0, 1, 2, 3), coordinate)
    assert local_positions(16, tp, True) == range(4 * coordinate, 4 * coordinate + 4)
    assert local_positions(16, tp, False) == range(16)


def test_rows_are_looked_up_by_position() -> None:
    positions = LearnedPositions(make_factory(small(max_position_embeddings=20)))
    assert positions.weight.shape == (20, 32) and positions.weight.spec.decayed
    ids = torch.tensor([[0, 1, 2], [19, 0, 1]])
    out = positions(ids)  # [s, b, h]
    assert out.shape == (3, 2, 32)
    assert torch.equal(out[0, 1], positions.weight[19]) and torch.equal(out[2, 0], positions.weight[2])
