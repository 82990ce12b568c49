# SPDX-License-Identifier: Apache-2.0
import time

from megatron_core.training.doctor.clock import ClockOffset, clock_offsets
from megatron_core.training.doctor.exchange import Exchange
from tests.training.doctor.thread_ranks import on_threads

SKEW = {0: 0.0, 1: 50.0, 2: 7.25, 3: -3.0}


def measure(exchange: Exchange) -> list[ClockOffset] | None:
    return clock_offsets(exchange, [0, 2, 3], lambda: time.time() + SKEW[exchange.rank])


def test_offsets_lie_within_their_uncertainty() -> None:
    found, *others = on_threads(4, measure)
    assert others == [None, None, None]
    assert found is not None and [offset.rank for offset in found] == [0, 2, 3]
    for offset in found:
        assert abs(offset.seconds - SKEW[offset.rank]) <= offset.uncertainty + 1e-6
        assert offset.uncertainty < 3.0
