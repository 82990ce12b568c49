# SPDX-License-Identifier: Apache-2.0
"""Cuts the layers into contiguous ranges, one a virtual stage, so that the slowest stage is as fast as can be.

Virtual stage k = chunk · p + stage. The embedding goes with the first, the head and its loss with the last. By count,
both cost nothing and the ends get fewer layers only where the number does not divide; by cost, an end may have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, product

from megatron_core.errors import ConfigError


def partition(
    num_layers: int,
    p: int,
    v: int = 1,
    *,
    first: int | None = None,
    last: int | None = None,
    layer_cost: float = 1.0,
    embedding_cost: float = 0.0,
    head_cost: float = 0.0,
) -> tuple[range, ...]:
    """Layers of each of the p · v virtual stages: together 0 .. num_layers - 1, each once.

    Costs are in any one unit; those of embedding and head are counted at the first and last virtual stage (one layer's
    each with `--account-for-embedding/loss-in-pipeline-split`). `first` and `last` fix the layers of the first and last
    rank, all chunks together. Minimises the dearest rank, then the spread of virtual stages, then the layers at both
    ends, then those at the last. Exact for v = 1; for v > 1 what lies between the ends is evened out.
    Raises ConfigError when `first` or `last` cannot be kept or a virtual stage would have nothing to do.
    """
    assert p >= 1 and v >= 1 and layer_cost > 0, f"p {p}, v {v}, layer cost {layer_cost}"
    extra = [0.0] * (p * v)  # beside the layers, in units of a layer
    extra[0] += embedding_cost / layer_cost
    extra[-1] += head_cost / layer_cost
    fixed = _fixed_counts(num_layers, p, v, first, last)
    best = min(
        _splits(num_layers, p, fixed, extra),
        key=lambda counts: _badness(counts, p, extra),
        default=None,
    )
    if best is None:
        given = [f", {n} fixed for the {end} rank" for n, end in ((first, "first"), (last, "last")) if n is not None]
        raise ConfigError(
            f"{num_layers} layers cannot be split over {p} pipeline ranks, {v} virtual stages each{''.join(given)}: "
            "each layer needs a place and each virtual stage a layer. Use fewer stages, or change "
            "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers."
        )
    return tuple(range(stop - count, stop) for count, stop in zip(best, accumulate(best)))


def _fixed_counts(num_layers: int, p: int, v: int, first: int | None, last: int | None) -> dict[int, int]:
    """Virtual stage -> layers, for the chunks of the first and last rank where their layers are given."""
    fixed: dict[int, int] = {}
    for flag, layers, stage in (("first", first, 0), ("last", last, p - 1)):
        if layers is None:
            continue
        name = f"--decoder-{flag}-pipeline-num-layers {layers}"
        if p == 1:
            raise ConfigError(f"{name} needs at least 2 pipeline ranks; with 1 that rank has all {num_layers} layers.")
        if not 0 <= layers <= num_layers:
            raise ConfigError(f"{name} is impossible with {num_layers} layers; give 0 to {num_layers}.")
        if layers % v or (v > 1 and layers == 0):
            raise ConfigError(f"{name} does not fill the {v} virtual stages of its rank; give a multiple of {v}.")
        fixed.update({chunk * p + stage: layers // v for chunk in range(v)})
    return fixed


def _splits(num_layers: int, p: int, fixed: dict[int, int], extra: list[float]) -> Iterator[tuple[int, ...]]:
    """Layer counts of all virtual stages: every count at the two ends that can be best, the others evened out."""
    size = len(extra)
    free = [k for k in range(size) if k not in fixed]
    middle = [k for k in free if 0 < k < size - 1]
    rest = num_layers - sum(fixed.values())
    # An end with more than its share, even if the other end takes none, gains by giving a layer to the middle.
    most = -(-rest // max(1, len(free) - 1)) if middle else rest
    ends = sorted({0, size - 1})
    for at_ends in product(*([fixed[k]] if k in fixed else range(0 if extra[k] > 0 else 1, most + 1) for k in ends)):
        counts = {**fixed, **dict(zip(ends, at_ends))}
        left = num_layers - sum(counts.values())
        if left < len(middle) or (left and not middle):
            continue
        yield _even_out(left, middle, counts, p, extra)


def _even_out(layers: int, middle: list[int], counts: dict[int, int], p: int, extra: list[float]) -> tuple[int, ...]:
    """Counts of all virtual stages: those given, and `layers` over `middle`, a remainder to ranks with least to do."""
    share, remainder = divmod(layers, max(1, len(middle)))
    counts = {**counts, **dict.fromkeys(middle, share)}
    load = [sum(counts[k] + extra[k] for k in range(stage, len(extra), p)) for stage in range(p)]
    waiting = list(middle)
    for _ in range(remainder):
        k = min(waiting, key=lambda k: (load[k % p], -k))  # late stages first: early ones hold more activations
        waiting.remove(k)
        counts[k] += 1
        load[k % p] += 1
    return tuple(counts[k] for k in range(len(extra)))


def _badness(counts: tuple[int, ...], p: int, extra: list[float]) -> tuple[float, ...]:
    """What `partition` minimises, in units of a layer, rounded so that equal costs compare equal."""
    costs = [round(count + more, 9) for count, more in zip(counts, extra)]
    ranks = [round(sum(costs[stage::p]), 9) for stage in range(p)]
    return max(ranks), round(max(costs) - min(costs), 9), counts[0] + counts[-1], counts[-1]
