# SPDX-License-Identifier: Apache-2.0
"""Which data set gives sample n of a blend, in closed form.

Two sets of weights w_0, w_1 share n samples as ⌊n·w_0/w + ½⌋ and the rest. More sets form a binary tree whose inner
nodes share what they are given in the same way. So the count of every set after n samples, and with it the owner of
sample n and its number within that set, come from a walk down the tree: there is no index to build, no drift, and
nothing depends on how long the run is. Arithmetic is on integers, hence exact.

A leaf is off by at most ½ + r·(error of its parent), r its share of the parent: near-equal pairs, as Huffman's tree
makes them, forget the error above. The lightest set, which has no equal, parts at the root, where there is none.
"""

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

from megatron_core.errors import DataError

Weight = float | str | Fraction


@dataclass(frozen=True)
class _Node:
    """Inner node: `share`/`total` of its samples go to child 0. Children: data sets ≥ 0, inner nodes as ~position."""

    share: int
    total: int
    children: tuple[int, int]

    def first_child_count(self, n: int) -> int:
        return (2 * n * self.share + self.total) // (2 * self.total)


class Blend:
    """Shares of training samples among data sets.

    `weights` count relative to their sum ("1 9" is "0.1 0.9"); a set of weight 0 is never used.
    Raises DataError for weights that are negative, not finite, or all 0.
    """

    def __init__(self, weights: Sequence[Weight]) -> None:
        exact = [exact_weight(weight) for weight in weights]
        if not any(exact):
            raise DataError(f"blend weights {[str(w) for w in weights]}: at least one must be above 0")
        self.weights = tuple(weight / sum(exact) for weight in exact)
        self._nodes, self._root = _tree(self.weights)

    def locate(self, sample: int) -> tuple[int, int]:
        """(data set, number within it) of a sample of the blend."""
        child, index = self._root, sample
        while child < 0:
            node = self._nodes[~child]
            before = node.first_child_count(index)
            if node.first_child_count(index + 1) > before:
                child, index = node.children[0], before
            else:
                child, index = node.children[1], index - before
        return child, index

    def counts(self, samples: int) -> tuple[int, ...]:
        """How many of the first `samples` samples each data set gives."""
        counts = [0] * len(self.weights)
        open_nodes = [(self._root, samples)]
        while open_nodes:
            child, n = open_nodes.pop()
            if child >= 0:
                counts[child] = n
                continue
            node = self._nodes[~child]
            first = node.first_child_count(n)
            open_nodes += [(node.children[0], first), (node.children[1], n - first)]
        return tuple(counts)


@dataclass(frozen=True)
class BlendCurriculum:
    """Blends in succession: `blends[k]` from sample `starts[k]` on, each going on where the data sets stand."""

    starts: tuple[int, ...]
    blends: tuple[Blend, ...]

    def __post_init__(self) -> None:
        if not self.starts or self.starts[0] != 0 or list(self.starts) != sorted(set(self.starts)):
            raise DataError(f"a blend curriculum must start at 0 and go up, but its segments start at {self.starts}")
        if len({len(blend.weights) for blend in self.blends}) != 1 or len(self.blends) != len(self.starts):
            raise DataError("each segment of a blend curriculum needs one weight for every data set (0: not used)")

    def segment(self, sample: int) -> int:
        """Number of the segment that a sample belongs to."""
        return bisect_right(self.starts, sample) - 1

    def locate(self, sample: int) -> tuple[int, int]:
        """(data set, number within it) of a sample; numbers of a set go up by one across segments."""
        segment = self.segment(sample)
        dataset, index = self.blends[segment].locate(sample - self.starts[segment])
        return dataset, self._offsets[segment][dataset] + index

    def counts(self, samples: int) -> tuple[int, ...]:
        """How many of the first `samples` samples each data set gives."""
        segment = self.segment(samples)
        within = self.blends[segment].counts(samples - self.starts[segment])
        return tuple(before + count for before, count in zip(self._offsets[segment], within))

    @cached_property
    def _offsets(self) -> tuple[tuple[int, ...], ...]:
        """Samples that each data set has given before each segment."""
        offsets = [(0,) * len(self.blends[0].weights)]
        for segment, blend in enumerate(self.blends[:-1]):
            counts = blend.counts(self.starts[segment + 1] - self.starts[segment])
            offsets.append(tuple(before + count for before, count in zip(offsets[-1], counts)))
        return tuple(offsets)


def exact_weight(weight: Weight) -> Fraction:
    """The number as it is written in decimal: 0.1 is one tenth. Raises DataError when it is not a number ≥ 0."""
    if isinstance(weight, Fraction):
        exact = weight
    else:
        try:
            decimal = Decimal(str(weight).strip())
        except ArithmeticError as error:
            raise DataError(f"{weight!r} is not a weight; give a number") from error
        if not decimal.is_finite():
            raise DataError(f"{weight!r} is not a weight; give a finite number")
        exact = Fraction(decimal)
    if exact < 0:
        raise DataError(f"weight {weight} is negative; give a number ≥ 0")
    return exact


def _tree(weights: Sequence[Fraction]) -> tuple[list[_Node], int]:
    """Inner nodes and the root; ties are broken by order of arrival, so that the tree is a function of the weights."""
    heap = [(weight, order, order) for order, weight in enumerate(weights) if weight > 0]
    heapq.heapify(heap)
    lightest = heapq.heappop(heap)
    nodes: list[_Node] = []

    def join(one: tuple[Fraction, int, int], other: tuple[Fraction, int, int]) -> tuple[Fraction, int, int]:
        weight = one[0] + other[0]
        share = one[0] / weight
        nodes.append(_Node(share.numerator, share.denominator, (one[2], other[2])))
        return weight, len(weights) + len(nodes), ~(len(nodes) - 1)

    while len(heap) > 1:
        one = heapq.heappop(heap)
        heapq.heapreplace(heap, join(one, heap[0]))
    root = join(lightest, heap[0]) if heap else lightest
    return nodes, root[2]
