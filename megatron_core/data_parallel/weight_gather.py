# SPDX-License-Identifier: Apache-2.0
"""Gives the weights that each dp rank has updated to all others, after the step of a sharded optimizer (ZeRO-1).

With overlap the next forward begins at once and waits for a bucket only when a module that holds some of it runs;
buckets are gathered in the order in which forward comes to them. Without ZeRO there is nothing to gather.
"""

from collections.abc import Iterable, Sequence

from torch import nn

from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.parallel.collectives import Work, all_gather_in_place
from megatron_core.parallel.context import ParallelContext


class WeightGather:
    """The gathering of one rank's buckets."""

    def __init__(
        self,
        buckets: Sequence[FlatBucket],
        modules: Iterable[nn.Module],
        ctx: ParallelContext,
        *,
        sharded: bool,
        overlap: bool,
    ) -> None:
        """`modules`: all that read weights in a forward, each those which it holds itself."""
        self._ctx, self._overlap = ctx, overlap
        self._buckets = buckets if sharded else ()
        self._pending: dict[int, Work] = {}
        self._begun: set[int] = set()
        """Those that an optimizer has begun with, bucket by bucket."""
        if sharded and overlap:
            number_of = {id(p): number for number, bucket in enumerate(buckets) for p in bucket.parameters}
            for module in modules:
                numbers = sorted({number_of[id(parameter)] for parameter in _own_parameters(module)})
                if numbers:
                    module.register_forward_pre_hook(lambda *_, numbers=numbers: self._wait(numbers))

    def start_bucket(self, number: int) -> None:
        """Begin with one bucket, before `start`, once the owned weights of it are updated."""
        if self._buckets:
            self._pending[number] = all_gather_in_place(self._buckets[number].weights, self._ctx.dp)
            self._begun.add(number)

    def start(self) -> None:
        """Begin with the rest, once the owned weights are updated; without overlap, return when all are there."""
        # Buckets are in backward order; a tied one, which comes last, is the embedding, which forward reads first.
        for number in reversed(range(len(self._buckets))):
            if number not in self._begun:
                self.start_bucket(number)
        self._begun.clear()
        if not self._overlap:
            self.finish()

    def finish(self) -> None:
        """Return when all weights are there: before anything but a forward reads them."""
        self._wait(list(self._pending))

    def _wait(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if (work := self._pending.pop(number, None)) is not None:
                work.wait()


def _own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """What the module's forward reads itself. A ParameterList has no forward: its parameters are its holder's."""
    if isinstance(module, nn.ParameterList):
        return []
    lists = [child for child in module.children() if isinstance(child, nn.ParameterList)]
    return [parameter for holder in (module, *lists) for parameter in holder.parameters(recurse=False)]
