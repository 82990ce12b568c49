# SPDX-License-Identifier: Apache-2.0
import dataclasses

from megatron_core.planner.constants import Constants


def test_there_are_eight_and_shares_are_shares() -> None:
    values = dataclasses.asdict(Constants())
    assert len(values) == 8
    assert all(0 < value <= 1 for name, value in values.items() if name.endswith("_share"))
