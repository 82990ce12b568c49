# SPDX-License-Identifier: Apache-2.0
"""How far the clocks of other nodes are off rank 0's, by question and answer over the store (Cristian 1989)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from megatron_core.training.doctor.exchange import Exchange

_ROUNDS = 8


@dataclass(frozen=True)
class ClockOffset:
    """Of one rank's clock."""

    rank: int
    seconds: float
    """Ahead of rank 0's, if positive."""
    uncertainty: float
    """Half of the quickest round trip."""


def clock_offsets(
    exchange: Exchange, ranks: Sequence[int], now: Callable[[], float] = time.time
) -> list[ClockOffset] | None:
    """Offsets of some ranks' clocks, on rank 0; None elsewhere. All ranks call, with the same `ranks`.

    Of several rounds the quickest counts: its answer came from the shortest time span.
    """
    found = []
    for peer in ranks:
        if exchange.rank == peer != 0:
            _answer(exchange, now)
        elif exchange.rank == 0:
            found.append(ClockOffset(0, 0.0, 0.0) if peer == 0 else _ask(exchange, peer, now))
    return found if exchange.rank == 0 else None


def _ask(exchange: Exchange, peer: int, now: Callable[[], float]) -> ClockOffset:
    rounds = []
    for number in range(_ROUNDS):
        sent = now()
        exchange.store.set(f"clock/{peer}/{number}/question", "")
        answer = float(exchange.await_text(f"clock/{peer}/{number}/answer"))
        received = now()
        rounds.append(((received - sent) / 2, answer - (sent + received) / 2))
    uncertainty, seconds = min(rounds)
    return ClockOffset(peer, seconds, uncertainty)


def _answer(exchange: Exchange, now: Callable[[], float]) -> None:
    for number in range(_ROUNDS):
        exchange.await_text(f"clock/{exchange.rank}/{number}/question")
        exchange.store.set(f"clock/{exchange.rank}/{number}/answer", repr(now()))
