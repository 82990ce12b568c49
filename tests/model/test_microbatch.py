# SPDX-License-Identifier: Apache-2.0
"""The sequence length is that of the positions, which every stage has."""

import torch

from megatron_core.model.microbatch import Microbatch


def test_positions_are_enough() -> None:
    assert Microbatch(position_ids=torch.arange(7).unsqueeze(0)).seq_length == 7
