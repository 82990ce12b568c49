# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules: pure functions from (p stages, v chunks a stage, m microbatches) to the compute of each stage.

                  idle / busy    live          source
    gpipe         (p-1)/m        m             Huang et al. 2019
    1f1b          (p-1)/m        p - stage     Narayanan et al. 2021, section 2.2.1
    interleaved   (p-1)/(v·m)    see there     Narayanan et al. 2021, section 2.2.2, here for any m
    zero-bubble   (p-1)/(3·m)    p             Qi et al. 2023, ZB-H1

Live counts the microbatches whose activations a stage holds at once. Every schedule runs the forwards of a chunk, its
backwards and its weight gradients in microbatch order. A new one is a function, its test and a line in `build`.
"""

from __future__ import annotations

from megatron_core.errors import ConfigError
from megatron_core.pipeline.action import Action, Kind, Schedule

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def build(name: str, p: int, v: int, m: int) -> Schedule:
    """The schedule called `name`, one of `SCHEDULES`. Raises ConfigError for other names and sizes it cannot serve."""
    if name not in SCHEDULES:
        raise ConfigError(f"There is no pipeline schedule {name!r}; choose one of {', '.join(SCHEDULES)}.")
    for size, what in ((p, "pipeline stages"), (v, "virtual stages a rank"), (m, "microbatches")):
        if size < 1:
            raise ConfigError(f"The {name} schedule needs at least 1 of its {what}, not {size}.")
    if name == "interleaved":
        return interleaved(p, v, m)
    if v > 1:
        raise ConfigError(
            f"The {name} schedule holds one chunk of layers a rank, not {v}; use interleaved, or no virtual stages."
        )
    if name == "gpipe":
        return gpipe(p, m)
    return one_f_one_b(p, m) if name == "1f1b" else zero_bubble(p, m)


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards: the simplest schedule, and the hungriest."""
    steps = tuple(Action(kind, microbatch, 0) for kind in (Kind.F, Kind.B) for microbatch in range(m))
    return (steps,) * p


def one_f_one_b(p: int, m: int) -> Schedule:
    """After p - 1 - stage forwards, one forward and one backward in turn: at most p - stage microbatches are live."""
    forwards = [Action(Kind.F, microbatch, 0) for microbatch in range(m)]
    backwards = [Action(Kind.B, microbatch, 0) for microbatch in range(m)]
    return tuple(_alternate(forwards, backwards, warmup=p - 1 - stage) for stage in range(p))


def interleaved(p: int, v: int, m: int) -> Schedule:
    """1F1B over v chunks a rank, microbatches going through in groups of p: the bubble shrinks v times.

    Stage s holds at most 2·(p - 1 - s) + (v - 1)·p + 1 chunk activations. An m that p does not divide is scheduled as
    the next multiple and the actions of the absent microbatches are struck out: what one microbatch does depends on no
    other, so that order, freedom from deadlock and bounds survive, and it takes no longer than the multiple would.
    """
    if v == 1:
        return one_f_one_b(p, m)
    groups = [range(start, start + p) for start in range(0, m, p)]
    forwards = [Action(Kind.F, i, chunk) for group in groups for chunk in range(v) for i in group]
    backwards = [Action(Kind.B, i, chunk) for group in groups for chunk in reversed(range(v)) for i in group]
    padded = (_alternate(forwards, backwards, warmup=2 * (p - 1 - stage) + (v - 1) * p) for stage in range(p))
    return tuple(tuple(action for action in steps if action.microbatch < m) for steps in padded)


def zero_bubble(p: int, m: int) -> Schedule:
    """ZB-H1: the order of 1F1B, where stage s puts each weight gradient W off until s more input gradients I are done.

    The last stage thus passes gradients back up to p - 1 units earlier (with F = I = W), and the Ws put off fill what
    was bubble. Each stage holds up to p microbatches, as the first does in 1F1B, but only p - stage before their I.
    The first stage passes no gradient on and has nothing to gain from the split: it runs whole backwards B.
    """
    return (
        one_f_one_b(p, m)[0],
        *(_split_backwards(steps, delay) for delay, steps in enumerate(one_f_one_b(p, m)) if delay),
    )


def forward_only(p: int, v: int, m: int) -> Schedule:
    """The forwards of `interleaved` (of any schedule, at v = 1) alone: evaluation."""
    return tuple(tuple(action for action in steps if action.kind is Kind.F) for steps in interleaved(p, v, m))


def _alternate(forwards: list[Action], backwards: list[Action], warmup: int) -> tuple[Action, ...]:
    """`warmup` forwards, then a forward and a backward in turn, then the backwards that are left."""
    warmup = min(warmup, len(forwards))
    steady = [action for pair in zip(forwards[warmup:], backwards) for action in pair]
    return (*forwards[:warmup], *steady, *backwards[len(forwards) - warmup :])


def _split_backwards(steps: tuple[Action, ...], delay: int) -> tuple[Action, ...]:
    """Each B as I, followed by the W of the microbatch `delay` earlier; the last Ws come at the end."""
    split: list[Action] = []
    microbatches = sum(action.kind is Kind.B for action in steps)
    for action in steps:
        if action.kind is Kind.F:
            split.append(action)
            continue
        split.append(Action(Kind.I, action.microbatch, action.chunk))
        if action.microbatch >= delay:
            split.append(Action(Kind.W, action.microbatch - delay, action.chunk))
    split.extend(Action(Kind.W, i, 0) for i in range(max(0, microbatches - delay), microbatches))
    return tuple(split)
