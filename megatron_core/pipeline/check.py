# SPDX-License-Identifier: Apache-2.0
"""Proves for given (p, v, m) that a program does all work in order, that transfers match and that none can deadlock.

Matching is by FIFO order per (source, destination), as NCCL has it, and every exchange is taken to block until each of
its transfers has met its counterpart: the worst that a runtime may do. A program that fails raises a `ScheduleError`
that shows the steps around the offending one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from megatron_core.pipeline.action import (
    Action,
    Exchange,
    Kind,
    Product,
    Program,
    Transfer,
    makes,
    needs,
    virtual_stage,
)
from megatron_core.pipeline.excerpt import excerpt


class ScheduleError(ValueError):
    """A schedule or program is wrong: what is, and a grid with an arrow at the place."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a checked program costs, one number a stage.

    `peak_live` counts chunk activations from F until B or W: something of the microbatch is held. `peak_full` counts
    them from F until B or I: the whole graph is held (from I to W only the inputs of the weight gradients are).
    """

    peak_live: tuple[int, ...]
    peak_full: tuple[int, ...]
    sends: tuple[int, ...]


def check(program: Program, p: int, v: int, m: int) -> Report:
    """Checks a program for p stages, v chunks a stage and m microbatches. Raises ScheduleError at the first fault."""
    if len(program) != p:
        raise ScheduleError(f"the program has {len(program)} stages where p is {p}")
    for stage in range(p):
        _check_work(program, stage, v, m)
    _check_matching(program)
    _run_blocking(program, v)
    return Report(
        peak_live=tuple(_peak(steps, (Kind.B, Kind.W)) for steps in program),
        peak_full=tuple(_peak(steps, (Kind.B, Kind.I)) for steps in program),
        sends=tuple(
            sum(t.send for step in steps if isinstance(step, Exchange) for t in step.transfers) for steps in program
        ),
    )


def _fault(program: Program, stage: int, index: int, reason: str) -> ScheduleError:
    return ScheduleError(f"stage {stage}, step {index}: {reason}\n{excerpt(program, {stage: index})}")


def _check_work(program: Program, stage: int, v: int, m: int) -> None:
    """Each F and each backward (B, or I and then W) once per chunk and microbatch, each kind in microbatch order."""
    due = {(part, chunk): 0 for part in ("F", "I", "W") for chunk in range(v)}  # -> next microbatch
    steps = program[stage]
    for index, action in enumerate(steps):
        if not isinstance(action, Action):
            continue
        if not 0 <= action.chunk < v:
            raise _fault(program, stage, index, f"{action} names a chunk outside 0..{v - 1}")
        for part in ("I", "W") if action.kind is Kind.B else (action.kind.value,):
            expected = due[part, action.chunk]
            if action.microbatch != expected or expected == m:
                wanted = f"microbatch {expected} is due" if expected < m else f"all {m} microbatches have run"
                reason = f"{action} is out of order: {wanted} for {part} of chunk {action.chunk}"
                raise _fault(program, stage, index, reason)
            due[part, action.chunk] += 1
        if due["W", action.chunk] > due["I", action.chunk]:
            raise _fault(program, stage, index, f"{action} runs before its input gradient I")
        if due["I", action.chunk] > due["F", action.chunk]:
            raise _fault(program, stage, index, f"{action} runs before its forward F")
    for (part, chunk), count in due.items():
        if count < m:
            raise _fault(program, stage, len(steps), f"only {count} of {m} {part} have run for chunk {chunk}")


class _Port(NamedTuple):
    """One end of the way from a source to a destination; transfers meet in order of posting."""

    source: int
    destination: int
    send: bool


def _port(stage: int, transfer: Transfer) -> _Port:
    return _Port(stage, transfer.peer, True) if transfer.send else _Port(transfer.peer, stage, False)


def _check_matching(program: Program) -> None:
    """The i-th send from a to b carries what the i-th receive on b from a expects: same tensor, next chunk."""
    p = len(program)
    posts: dict[_Port, list[tuple[int, Transfer]]] = defaultdict(list)  # -> (step, transfer)
    for stage, index, transfer in _transfers(program):
        if not (0 <= transfer.peer < p and transfer.peer != stage):
            raise _fault(program, stage, index, f"{transfer} names no other stage of {p}")
        posts[_port(stage, transfer)].append((index, transfer))
    for source, destination in sorted({(port.source, port.destination) for port in posts}):
        sends, receives = posts[_Port(source, destination, True)], posts[_Port(source, destination, False)]
        for i, ((at, send), (_, receive)) in enumerate(zip(sends, receives)):
            if (send.payload, _product(send, source, p)) != (receive.payload, _product(receive, destination, p)):
                reason = f"send {i} to stage {destination} is {send}, but that stage expects {receive}"
                raise _fault(program, source, at, reason)
        if len(sends) != len(receives):
            reason = f"{len(sends)} sends from stage {source} to {destination} meet {len(receives)} receives"
            surplus = sends[len(receives) :] or receives[len(sends) :]
            raise _fault(program, source if len(sends) > len(receives) else destination, surplus[0][0], reason)


def _transfers(program: Program) -> list[tuple[int, int, Transfer]]:
    """(stage, step, transfer) for all transfers."""
    return [
        (stage, index, transfer)
        for stage, steps in enumerate(program)
        for index, step in enumerate(steps)
        if isinstance(step, Exchange)
        for transfer in step.transfers
    ]


def _run_blocking(program: Program, v: int) -> None:
    """Runs the program with exchanges that block; an action may use only what its stage made or received by then."""
    p = len(program)
    at = [0] * p
    posted: dict[_Port, int] = defaultdict(int)  # -> transfers posted
    needed: list[list[tuple[_Port, int]]] = [[] for _ in range(p)]  # what the open exchange of a stage waits for
    held: list[set[Product]] = [set() for _ in range(p)]
    progress = True
    while progress:
        progress = False
        for stage, steps in enumerate(program):
            while at[stage] < len(steps):
                step = steps[at[stage]]
                if isinstance(step, Action):
                    _run_action(program, stage, at[stage], step, v, held[stage])
                else:
                    if not needed[stage]:
                        needed[stage] = _post(program, stage, at[stage], step, posted, held[stage])
                        progress = True
                    if any(posted[counterpart] < count for counterpart, count in needed[stage]):
                        break
                    needed[stage] = []
                    held[stage].update(_received(step, stage, p))
                at[stage] += 1
                progress = True
    stuck = {stage: at[stage] for stage in range(p) if at[stage] < len(program[stage])}
    if stuck:
        raise ScheduleError(f"deadlock: each arrow waits for a counterpart not posted\n{excerpt(program, stuck)}")


def _run_action(program: Program, stage: int, index: int, action: Action, v: int, held: set[Product]) -> None:
    k = virtual_stage(stage, action.chunk, len(program))
    missing = [product for product in needs(action, k, last=len(program) * v - 1) if product not in held]
    if missing:
        names = ", ".join(f"{x.kind.value}{x.microbatch} of virtual stage {x.virtual_stage}" for x in missing)
        raise _fault(program, stage, index, f"{action} runs without the outcome of {names}")
    held.add(makes(action, k))


def _post(
    program: Program,
    stage: int,
    index: int,
    exchange: Exchange,
    posted: dict[_Port, int],
    held: set[Product],
) -> list[tuple[_Port, int]]:
    """Posts an exchange and returns the counterparts that must be posted before it is through."""
    waits = []
    for transfer in exchange.transfers:
        if transfer.send and _product(transfer, stage, len(program)) not in held:
            raise _fault(program, stage, index, f"{transfer} is sent before it is made")
        port = _port(stage, transfer)
        posted[port] += 1
        waits.append((port._replace(send=not port.send), posted[port]))
    return waits


def _product(transfer: Transfer, stage: int, p: int) -> Product:
    """What a transfer carries, named by where it was made."""
    k = virtual_stage(stage, transfer.chunk, p)
    forward = transfer.payload == "activation"
    if not transfer.send:
        k += -1 if forward else 1
    return Product(Kind.F if forward else Kind.I, transfer.microbatch, k)


def _received(exchange: Exchange, stage: int, p: int) -> list[Product]:
    return [_product(transfer, stage, p) for transfer in exchange.transfers if not transfer.send]


def _peak(steps: tuple[Action | Exchange, ...], release: tuple[Kind, ...]) -> int:
    """The most chunk activations held at once when an F takes one and each of `release` gives one back."""
    live = peak = 0
    for step in steps:
        if isinstance(step, Action):
            live += (step.kind is Kind.F) - (step.kind in release)
            peak = max(peak, live)
    return peak
