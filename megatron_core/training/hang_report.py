# SPDX-License-Identifier: Apache-2.0
"""From what the ranks of a stuck job say of themselves to who waits for whom, and whose fault it is. Pure.

A rank in call number n of a channel waits for the members that have begun fewer than n calls there, and for those that
no longer answer. Who is waited for and waits for nobody holds up the job. Where there is none, the ranks wait in a
circle: they called collectives in different orders.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from megatron_core.parallel.collective_log import Call, Snapshot

_NAMED = 8
"""Ranks that a list spells out before it counts."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What one rank says of itself."""

    snapshot: Snapshot
    error: str | None = None
    """Why its collective failed, None where it did not."""


@dataclass(frozen=True, kw_only=True)
class HangReport:
    """What to tell."""

    lines: Mapping[int, str]
    """One sentence for each rank that answered."""
    verdict: str
    """One paragraph for all."""


def encode(standing: Standing) -> str:
    """One line of JSON."""
    return json.dumps(dataclasses.asdict(standing))


def decode(text: str) -> Standing:
    """The inverse of `encode`."""
    record = json.loads(text)
    snapshot = record["snapshot"]
    for key in ("inside", "last"):
        if snapshot[key] is not None:
            op, group, channel, number, members = snapshot[key]
            snapshot[key] = Call(op, group, channel, number, tuple(members))
    return Standing(snapshot=Snapshot(**snapshot), error=record["error"])


def hang_report(answers: Mapping[int, Standing], world_size: int) -> HangReport:
    """Who waits for whom among ranks 0 to world_size - 1; a rank without an answer is dead or stopped."""
    inside = {rank: answers[rank].snapshot.inside for rank in sorted(answers)}
    # Once a call and not once a rank: at thousands of ranks all may wait in the same one.
    missing = {call: _missing(call, answers) for call in set(inside.values()) if call is not None}
    awaited = {rank: missing[call] if call is not None else () for rank, call in inside.items()}
    lines = {rank: f"{describe(rank, answers[rank])}{_for_whom(awaited[rank], answers)}" for rank in awaited}
    return HangReport(lines=lines, verdict=" ".join(_verdict(answers, awaited, world_size)))


def describe(rank: int, standing: Standing) -> str:
    """Where one rank stands."""
    snapshot = standing.snapshot
    if snapshot.inside is not None:
        where = f"{_name(snapshot.inside)} of {_members(snapshot.inside)}"
        if standing.error is not None:
            return f"rank {rank} failed in {where}: {standing.error}"
        return f"rank {rank} waits in {where} for {_seconds(snapshot.inside_s)}"
    error = f" and failed: {standing.error}" if standing.error is not None else ""
    return f"rank {rank} is not in a collective ({_last(snapshot)}){error}"


def _missing(call: Call, answers: Mapping[int, Standing]) -> tuple[int, ...]:
    """The members of a call that have not joined it, or joined it with another operation, or are gone."""
    return tuple(m for m in call.members if m not in answers or not _joined(call, answers[m].snapshot))


def _joined(call: Call, other: Snapshot) -> bool:
    if other.counts.get(call.channel, 0) < call.number:
        return False
    inside = other.inside
    if inside is None or (inside.channel, inside.number) != (call.channel, call.number):
        return True
    return inside.op == call.op or {inside.op, call.op} == {"send", "receive"}


def _verdict(answers: Mapping[int, Standing], awaited: Mapping[int, tuple[int, ...]], world_size: int) -> Iterable[str]:
    silent = [rank for rank in range(world_size) if rank not in answers]
    if silent:
        yield f"{_ranks(silent)} did not answer: dead or stopped."
    waited_for = {member for members in awaited.values() for member in members}
    busy = [rank for rank in sorted(waited_for & set(awaited)) if not awaited[rank]]
    for rank in busy[:_NAMED]:
        yield f"Others wait for rank {rank}: {describe(rank, answers[rank])}; its stacks say where it is."
    if len(busy) > _NAMED:
        yield f"They wait for {len(busy) - _NAMED} more such ranks."
    failed = [rank for rank in sorted(answers) if answers[rank].error is not None]
    if failed and not silent:
        yield f"It began where {describe(failed[0], answers[failed[0]])}."
    if silent or busy or failed:
        return
    circle = _circle(awaited)
    if circle:
        told = "; ".join(describe(rank, answers[rank]) for rank in circle[:_NAMED])
        yield f"{_ranks(circle)} wait for one another, in collectives that do not match: {told}."
    elif calls := sorted({s.snapshot.inside for s in answers.values() if s.snapshot.inside is not None}):
        yield f"All members have joined {_name(calls[0])} of {_members(calls[0])}: the network or a device is stuck."
    else:
        yield "All ranks answered and none is in a collective any more: it was slow, not stuck."


def _circle(awaited: Mapping[int, tuple[int, ...]]) -> list[int]:
    """Ranks on a circle of waiting, followed from the lowest rank that waits; empty where there is none."""
    rank = next((rank for rank, members in awaited.items() if members), None)
    path: list[int] = []
    while rank is not None and rank not in path:
        path.append(rank)
        rank = next(iter(awaited.get(rank, ())), None)
    return sorted(path[path.index(rank) :]) if rank is not None else []


def _for_whom(members: tuple[int, ...], answers: Mapping[int, Standing]) -> str:
    if not members:
        return ""
    told = "; ".join(_describe_any(member, answers) for member in members[:_NAMED])
    more = f"; and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
    return f"; {told}{more}"


def _describe_any(rank: int, answers: Mapping[int, Standing]) -> str:
    return describe(rank, answers[rank]) if rank in answers else f"rank {rank} did not answer: dead or stopped"


def _last(snapshot: Snapshot) -> str:
    if snapshot.last is None:
        return "it has called none yet"
    return f"last: {_name(snapshot.last)} of {_members(snapshot.last)}, {_seconds(snapshot.last_s)} ago"


def _name(call: Call) -> str:
    return f"{call.op} #{call.number}"


def _members(call: Call) -> str:
    if call.op in ("send", "receive"):
        return f"group {call.group} ({call.members[0]} to {call.members[1]})"
    return f"group {call.group} ({_ranks(call.members)})"


def _ranks(ranks: Iterable[int]) -> str:
    """Such as `rank 3`, `ranks 0, 1`, or `ranks 0, 1, 2, 3, 4, 5, 6, 7, ... (2240 ranks)`."""
    listed = list(ranks)
    if len(listed) == 1:
        return f"rank {listed[0]}"
    named = ", ".join(map(str, listed[:_NAMED]))
    return f"ranks {named}" + (f", ... ({len(listed)} ranks)" if len(listed) > _NAMED else "")


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
