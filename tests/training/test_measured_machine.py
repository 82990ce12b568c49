# SPDX-License-Identifier: Apache-2.0
from unittest import mock

import pytest

from megatron_core.parallel.context import ParallelContext
from megatron_core.training import measured_machine
from megatron_core.training.measured_machine import measure_machine, measure_messages
from tests.rank_pool import ranks


@ranks(2)
def test_messages_are_timed_by_bytes(ctx: ParallelContext) -> None:
    with mock.patch.object(measured_machine, "MESSAGES", (4096, 8192)):
        found = {(one.name, one.amount): one.seconds for one in measure_messages(ctx.dp)}
    assert set(found) == {(name, size) for name in ("all_reduce", "all_gather", "send") for size in (4096, 8192)}
    assert all(seconds > 0 for seconds in found.values())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_whole_machine() -> None:
    found = measure_machine("here", "fp32", 1)
    names = {one.name for one in found.device.measured_operators}
    assert {"layer", "step", "all_reduce", "update", "attention backward"} <= names
    assert found.device.peak("fp32") > 1e9 and found.devices_per_node >= 1 and found.device.memory_gb_per_s > 0.1
