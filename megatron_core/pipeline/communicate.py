# SPDX-License-Identifier: Apache-2.0
"""Adds sends and receives to a compute-only schedule, such that no two stages can wait for each other.

The schedule is played in rounds in which every stage runs at most one action. What a round made for another stage is
sent right after it and received at the very same round, long before use where the receiver is busy: a prefetch. All
transfers of a stage in a round form one `Exchange`, so that a round's exchanges match among themselves. Hence the
program cannot deadlock even if each exchange blocks until all its transfers are met; and both ends name the transfers
of a pair in the same order, since NCCL ignores tags and at p = 2 both neighbours are one peer.
"""

from __future__ import annotations

from megatron_core.pipeline.action import (
    Action,
    Exchange,
    Kind,
    Payload,
    Product,
    Program,
    Schedule,
    Transfer,
    makes,
    needs,
    virtual_stage,
)
from megatron_core.pipeline.excerpt import excerpt


def communicate(schedule: Schedule, v: int) -> Program:
    """The schedule with its exchanges, for v chunks a stage. One that deadlocks fails an assertion that shows where."""
    p = len(schedule)
    program: list[list[Action | Exchange]] = [[] for _ in schedule]
    at = [0] * p
    made: set[Product] = set()
    while unfinished := [stage for stage in range(p) if at[stage] < len(schedule[stage])]:
        round_ = {
            stage: schedule[stage][at[stage]]
            for stage in unfinished
            if _is_ready(schedule[stage][at[stage]], stage, p, v, made)
        }
        waiting = {stage: at[stage] for stage in unfinished}
        assert round_, f"the schedule deadlocks; each arrow waits:\n{excerpt(schedule, waiting)}"
        for stage, action in round_.items():
            program[stage].append(action)
            at[stage] += 1
            made.add(makes(action, virtual_stage(stage, action.chunk, p)))
        for stage, transfers in _transfers(round_, p, v).items():
            program[stage].append(Exchange(tuple(transfers)))
    return tuple(map(tuple, program))


def _is_ready(action: Action, stage: int, p: int, v: int, made: set[Product]) -> bool:
    return all(product in made for product in needs(action, virtual_stage(stage, action.chunk, p), last=p * v - 1))


def _transfers(round_: dict[int, Action], p: int, v: int) -> dict[int, list[Transfer]]:
    """Stage -> what it sends and receives after a round, in order of the sending stage."""
    transfers: dict[int, list[Transfer]] = {}
    for source, action in round_.items():
        if action.kind is Kind.W:
            continue
        forward = action.kind is Kind.F
        k = virtual_stage(source, action.chunk, p) + (1 if forward else -1)
        destination = k % p
        if not 0 <= k < p * v or destination == source:  # the ends, or handed over on the spot (p = 1)
            continue
        payload: Payload = "activation" if forward else "gradient"
        transfers.setdefault(source, []).append(Transfer(True, destination, payload, action.microbatch, action.chunk))
        transfers.setdefault(destination, []).append(Transfer(False, source, payload, action.microbatch, k // p))
    return transfers
