# SPDX-License-Identifier: Apache-2.0
"""The average of flat tensors over data parallelism in one bit an element each way, with error feedback at both ends.

    worker   value + its error -> signs, scales       what was lost is its new error
             all-to-all of packed signs and of scales
    server   average of its rows + its error -> signs, scales        of each bucket every dp rank serves some rows
             all-gather of packed signs and of scales

A scale is a mean over a row, whichever ranks hold it: where tp cuts rows, their sums meet over tp. So neither cuts nor
buckets nor stages show in the numbers, only the number of dp ranks. Scales travel in bf16, and both sides take what was
sent, so that the errors know of the rounding. What is added over ranks is added in their order, so that the two copies
of a tied table stay equal to the bit. Paper: Tang et al., arXiv:2102.02888.
"""

from collections.abc import Sequence

import torch

from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.data_parallel.served_rows import Served, bucket_rows, share_out
from megatron_core.kernels.precision import wide_dtype
from megatron_core.optim.onebit_compress import (
    Errors,
    absolute_sums,
    decompress,
    live_counts,
    pack_signs,
    unpack_signs,
)
from megatron_core.parallel.collectives import Work, all_gather, all_gather_async, all_to_all_async
from megatron_core.parallel.context import Group, ParallelContext


class CompressedExchange:
    """The exchange of one rank; every member of its dp group has one over the same buckets."""

    def __init__(self, buckets: Sequence[FlatBucket], ctx: ParallelContext) -> None:
        self._dp, self._tp = ctx.dp, ctx.tp
        self._shares, num_scales = share_out([bucket_rows(bucket) for bucket in buckets], self._dp.size)
        self._widths = [-(-max(part.stop - part.start for part in parts) // 8) * 8 for parts in self._shares]
        """Signs that travel of each member's part, by bucket."""
        self.errors: list[Errors] = []
        """One a bucket; zero before the first exchange."""
        cut = torch.zeros(self._dp.size, num_scales, dtype=torch.bool)
        for bucket, parts in zip(buckets, self._shares):
            own = parts[self._dp.coordinate]
            zeros = torch.zeros_like(bucket.weights, dtype=wide_dtype(bucket.weights.dtype))
            server = zeros.new_zeros(own.stop - own.start)
            self.errors.append(Errors(self._dp.coordinate, self._dp.size, zeros, server, own.start))
            for member, part in zip(cut, parts):
                for run in part.rows:
                    member[run.scales] = run.cut
        self._cut = [row.nonzero().view(-1).to(ctx.device) for row in cut]
        """Numbers of the scales whose rows are cut over tp, by member."""
        self._num_scales = num_scales

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
        replies, scales = self._from_servers(dead, counts[self._dp.coordinate], arrivals, scales)
        for value, mask, parts, (bits, work) in zip(values, dead, self._shares, replies):
            work.wait()
            _decompress_parts(bits, scales, parts, out=value).masked_fill_(mask, 0)

    def _counts(self, values: Sequence[torch.Tensor], dead: Sequence[torch.Tensor]) -> torch.Tensor:
        """Elements behind each scale, at least 1: [dp, scales]."""
        counts = values[0].new_zeros(self._dp.size, self._num_scales)
        for mask, parts in zip(dead, self._shares):
            for part, row in zip(parts, counts):
                live_counts(mask[part.span], part.rows, out=row)
        return self._whole_rows(counts, self._cut).clamp_(min=1)

    def _to_servers(
        self, values: Sequence[torch.Tensor], dead: Sequence[torch.Tensor], counts: torch.Tensor
    ) -> tuple[list[tuple[torch.Tensor, Work]], torch.Tensor]:
        """Phase 1: everybody's bits of this rank's parts, on their way, and everybody's scales of them [dp, scales]."""
        bits, arrivals, sums = [], [], torch.zeros_like(counts)
        for value, parts, errors, width in zip(values, self._shares, self.errors, self._widths):
            value.add_(errors.worker)
            for part, row in zip(parts, sums):
                absolute_sums(value[part.span], part.rows, out=row)
            bits.append(pack_signs([value[part.span] for part in parts], width))
            arrivals.append(all_to_all_async(bits[-1], self._dp))
        scales = (self._whole_rows(sums, self._cut) / counts).bfloat16()
        received, work = all_to_all_async(scales.view(torch.uint8), self._dp)
        for value, mask, parts, errors, packed in zip(values, dead, self._shares, self.errors, bits):
            sent = _decompress_parts(packed, scales.to(value.dtype), parts, out=errors.worker)  # `value` has the old
            torch.sub(value, sent, out=errors.worker).masked_fill_(mask, 0)
        work.wait()
        return arrivals, received.view(torch.bfloat16).to(counts.dtype)

    def _from_servers(
        self,
        dead: Sequence[torch.Tensor],
        counts: torch.Tensor,
        arrivals: Sequence[tuple[torch.Tensor, Work]],
        worker_scales: torch.Tensor,
    ) -> tuple[list[tuple[torch.Tensor, Work]], torch.Tensor]:
        """Phase 2: the bits of all parts, on their way, and the scales [dp, scales] that belong to them."""
        bits, replies, sums = [], [], torch.zeros_like(counts)
        own = [parts[self._dp.coordinate] for parts in self._shares]
        for part, mask, errors, width, (received, work) in zip(own, dead, self.errors, self._widths, arrivals):
            work.wait()
            average, scratch = errors.server, torch.empty_like(errors.server)
            for signs, scales in zip(unpack_signs(received), worker_scales / self._dp.size):
                average.add_(decompress(signs, scales, part.rows, out=scratch))
            average.masked_fill_(mask[part.span], 0)
            absolute_sums(average, part.rows, out=sums)
            bits.append(pack_signs([average], width))
            replies.append(all_gather_async(bits[-1], self._dp))
        scales = (self._whole_rows(sums.unsqueeze(0), [self._cut[self._dp.coordinate]]) / counts).bfloat16()
        everybodys, work = all_gather_async(scales.view(torch.uint8), self._dp)
        for part, mask, errors, packed in zip(own, dead, self.errors, bits):
            sent = torch.empty_like(errors.server)
            decompress(unpack_signs(packed)[0], scales[0].to(sent.dtype), part.rows, out=sent)
            errors.server.sub_(sent).masked_fill_(mask[part.span], 0)
        work.wait()
        return replies, everybodys.view(torch.bfloat16).to(counts.dtype)

    def _whole_rows(self, sums: torch.Tensor, cut: Sequence[torch.Tensor]) -> torch.Tensor:
        """Sums [members, scales] over what this rank holds of each row, made those over whole rows in place.

        cut: of each member, the numbers of the scales that must meet.
        """
        parts = torch.cat([row[numbers] for row, numbers in zip(sums, cut)])
        if not parts.numel():
            return sums
        met = _added(parts, self._tp)
        for row, numbers, part in zip(sums, cut, met.split([len(numbers) for numbers in cut])):
            row[numbers] = part
        return sums


def _decompress_parts(
    bits: torch.Tensor, scales: torch.Tensor, parts: Sequence[Served], out: torch.Tensor
) -> torch.Tensor:
    """A bucket from the packed signs [members, width / 8] and the scales [members, scales] of all parts: `out` [n]."""
    for part, signs, row in zip(parts, unpack_signs(bits), scales):
        decompress(signs, row, part.rows, out=out[part.span])
    return out


def _added(vector: torch.Tensor, group: Group) -> torch.Tensor:
    """The sum over a group, added in order of coordinate: an all-reduce adds in an order that depends on lengths."""
    rows = all_gather(vector, group).view(group.size, -1)
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
