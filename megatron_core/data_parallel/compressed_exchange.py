# SPDX-License-Identifier: Apache-2.0
"""The average of flat tensors over data parallelism in one bit an element each way, with error feedback at both ends.

    worker   value + its error -> signs, scales       what was lost is its new error
             all-to-all of packed signs, all-gather of scales
    server   average of its range + its error -> signs, scales       of each bucket every dp rank serves one range
             all-gather of packed signs and of the sums behind the scales

A scale is a mean over all of a parameter, whichever ranks hold it: sums meet over tp, and those of servers over dp. So
neither cuts nor buckets nor stages show in the numbers, only the number of dp ranks. What is added over ranks is added
in their order, so that the two copies of a tied table stay equal to the bit. Paper: Tang et al., arXiv:2102.02888.
"""

from collections.abc import Sequence

import torch

from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.kernels.precision import wide_dtype
from megatron_core.optim.onebit_compress import (
    Errors,
    Piece,
    absolute_sums,
    decompress,
    live_counts,
    pack_signs,
    pieces_within,
    unpack_signs,
)
from megatron_core.parallel.collectives import Work, all_gather, all_gather_async, all_to_all_async
from megatron_core.parallel.context import Group, ParallelContext


class CompressedExchange:
    """The exchange of one rank; every member of its dp group has one over the same buckets."""

    def __init__(self, buckets: Sequence[FlatBucket], ctx: ParallelContext) -> None:
        self._dp, self._tp = ctx.dp, ctx.tp
        self._pieces: list[tuple[Piece, ...]] = []
        self.errors: list[Errors] = []
        """One a bucket; zero before the first exchange."""
        self._num_scales = 0
        for bucket in buckets:
            first = self._num_scales
            self._pieces.append(tuple(Piece(s.start, s.stop, first + i) for i, s in enumerate(bucket.slots)))
            self._num_scales += len(bucket.slots)
            width = -(-bucket.weights.numel() // (8 * self._dp.size)) * 8
            zeros = torch.zeros_like(bucket.weights, dtype=wide_dtype(bucket.weights.dtype))
            self.errors.append(Errors(self._dp.coordinate, self._dp.size, zeros, zeros.new_zeros(width)))

    @property
    def size(self) -> int:
        """Number of ranks that are averaged over."""
        return self._dp.size

    def forget(self) -> None:
        """Start with no errors, as a new run does."""
        for errors in self.errors:
            errors.worker.zero_()
            errors.server.zero_()

    def average(self, values: Sequence[torch.Tensor], dead: Sequence[torch.Tensor]) -> None:
        """Replace each bucket's `values` [n] by their compressed average over dp, the same on every member.

        dead: bool [n], the same on every member: elements whose value is 0 and stays 0.
        """
        counts = self._counts(values, dead)
        arrivals, scales = self._to_servers(values, dead, counts)
        replies, scales = self._from_servers(dead, counts, arrivals, scales)
        for value, mask, pieces, (bits, work) in zip(values, dead, self._pieces, replies):
            work.wait()
            decompress(unpack_signs(bits), scales, pieces, out=value).masked_fill_(mask, 0)

    def _counts(self, values: Sequence[torch.Tensor], dead: Sequence[torch.Tensor]) -> torch.Tensor:
        """Elements behind each scale, at least 1."""
        counts = torch.zeros(self._num_scales, dtype=values[0].dtype, device=values[0].device)
        for mask, pieces in zip(dead, self._pieces):
            counts += live_counts(mask, pieces, self._num_scales, counts.dtype)
        return _added(counts, self._tp).clamp_(min=1)

    def _to_servers(
        self, values: Sequence[torch.Tensor], dead: Sequence[torch.Tensor], counts: torch.Tensor
    ) -> tuple[list[tuple[torch.Tensor, Work]], torch.Tensor]:
        """Phase 1: everybody's bits of this rank's ranges, on their way, and everybody's scales [dp, num_scales]."""
        bits, arrivals, sums = [], [], torch.zeros_like(counts)
        for value, pieces, errors in zip(values, self._pieces, self.errors):
            value.add_(errors.worker)
            sums += absolute_sums(value, pieces, self._num_scales)
            bits.append(pack_signs(value, errors.server.numel() * self._dp.size))
            arrivals.append(all_to_all_async(bits[-1], self._dp))
        scales = _added(sums, self._tp) / counts
        for value, mask, pieces, errors, packed in zip(values, dead, self._pieces, self.errors, bits):
            sent = decompress(unpack_signs(packed), scales, pieces, out=errors.worker)  # the old errors are in `value`
            torch.sub(value, sent, out=errors.worker).masked_fill_(mask, 0)
        return arrivals, all_gather(scales, self._dp).view(self._dp.size, -1)

    def _from_servers(
        self,
        dead: Sequence[torch.Tensor],
        counts: torch.Tensor,
        arrivals: Sequence[tuple[torch.Tensor, Work]],
        worker_scales: torch.Tensor,
    ) -> tuple[list[tuple[torch.Tensor, Work]], torch.Tensor]:
        """Phase 2: the bits of all ranges, on their way, and the scales [num_scales] that belong to them."""
        bits, replies, sums = [], [], torch.zeros_like(counts)
        served = [self._served(number, mask) for number, mask in enumerate(dead)]
        for (pieces, mask), errors, (received, work) in zip(served, self.errors, arrivals):
            work.wait()
            average, scratch = errors.server, torch.empty_like(errors.server)  # between pieces both are masked below
            for signs, scales in zip(unpack_signs(received).view(self._dp.size, -1), worker_scales / self._dp.size):
                average.add_(decompress(signs, scales, pieces, out=scratch))
            average.masked_fill_(mask, 0)
            sums += absolute_sums(average, pieces, self._num_scales)
            bits.append(pack_signs(average, average.numel()))
            replies.append(all_gather_async(bits[-1], self._dp))
        scales = _added(_added(sums, self._dp), self._tp) / counts
        for (pieces, mask), errors, packed in zip(served, self.errors, bits):
            sent = decompress(unpack_signs(packed), scales, pieces, out=torch.empty_like(errors.server))
            errors.server.sub_(sent).masked_fill_(mask, 0)
        return replies, scales

    def _served(self, number: int, dead: torch.Tensor) -> tuple[list[Piece], torch.Tensor]:
        """Pieces and dead elements of the range of bucket `number` that this rank serves; dead beyond the bucket."""
        errors = self.errors[number]
        width = errors.server.numel()
        mask = torch.ones(width, dtype=torch.bool, device=dead.device)
        own = dead[errors.start : errors.start + width]
        mask[: own.numel()] = own
        return list(pieces_within(self._pieces[number], errors.start, errors.start + width)), mask


def _added(vector: torch.Tensor, group: Group) -> torch.Tensor:
    """The sum over a group, added in order of coordinate: an all-reduce adds in an order that depends on lengths."""
    rows = all_gather(vector, group).view(group.size, -1)
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
