# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy over logits cut along the vocabulary, which are never gathered (Shoeybi et al. 2019, section 3).

Only three numbers a token cross ranks: the largest logit, the sum of exponentials and the target's logit. The logits
themselves are overwritten block by block, first by exponentials and in the backward by their gradient, so that one
buffer of [tokens, v/tp] and a block in fp32 are all the memory this takes. Padding columns get exactly zero in both.
"""

from collections.abc import Iterator
from typing import Any

import torch

from megatron_core.kernels.precision import at_least_fp32, wide_dtype
from megatron_core.parallel.collectives import MAX, all_reduce
from megatron_core.parallel.context import Group
from megatron_core.parallel.fake_memory import is_fake
from megatron_core.tensor_parallel.vocab import VocabSlice

_CPU_BLOCK_BYTES = 1 << 20  # a block of rows this large stays in a core's cache over the passes made on it
_GPU_BLOCK_BYTES = 1 << 28  # fills a GPU, and bounds what 16-bit logits cost in fp32


def _wide_blocks(logits: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Runs of rows that are worked on at once, and these rows in at least fp32; what is done to them stays.

    Of 16-bit logits they are copies in one buffer, which are put back when the next block is asked for.
    """
    rows, columns = logits.shape
    on_cpu = logits.device.type == "cpu" and not is_fake(logits)
    block_bytes = _CPU_BLOCK_BYTES if on_cpu else _GPU_BLOCK_BYTES
    step = min(rows, max(1, block_bytes // max(1, columns * 4)))
    wide = wide_dtype(logits.dtype)
    buffer = None if wide == logits.dtype else logits.new_empty(step, columns, dtype=wide)
    for first in range(0, rows, step):
        block = slice(first, min(first + step, rows))
        if buffer is None:
            yield block, logits[block]
        else:
            yield block, (values := buffer[: block.stop - first].copy_(logits[block]))
            logits[block] = values


class _VocabCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        piece: VocabSlice,
        vocabulary: int,
        group: Group,
        z_loss_coeff: float,
        label_smoothing: float,
    ) -> torch.Tensor:
        n, held = logits.shape[0], piece.stop - piece.start
        wide = wide_dtype(logits.dtype)
        real = logits[:, :held]
        maxima = logits.new_full((n,), -torch.inf, dtype=wide)
        if held:
            maxima = at_least_fp32(real.amax(-1))
        all_reduce(maxima, group, MAX)

        local = targets - piece.start
        owned = (local >= 0) & (local < held)
        local = torch.where(owned, local, 0)
        # Rows: sum of exponentials, the target's logit, sum of all logits; each of them relative to the maximum.
        sums = logits.new_zeros(3 if label_smoothing else 2, n, dtype=wide)
        if held:
            target_logits = at_least_fp32(real.gather(1, local.unsqueeze(1)).squeeze(1))
            sums[1] = torch.where(owned, target_logits - maxima, 0.0)
            for block, values in _wide_blocks(real):
                values.sub_(maxima[block].unsqueeze(1))
                if label_smoothing:
                    sums[2, block] = values.sum(-1)
                values.exp_()
                sums[0, block] = values.sum(-1)
        logits[:, held:] = 0
        all_reduce(sums, group)

        log_sum = sums[0].log()
        losses = log_sum - sums[1]
        if label_smoothing:
            losses = losses + label_smoothing * (sums[1] - sums[2] / vocabulary)
        log_z = log_sum + maxima
        if z_loss_coeff:
            losses = losses + z_loss_coeff * log_z.square()
        ctx.held, ctx.z_loss_coeff, ctx.smoothing = held, z_loss_coeff, (label_smoothing, vocabulary)
        ctx.save_for_backward(logits, local, owned, sums[0], log_z)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, local, owned, total, log_z = ctx.saved_tensors
        smoothing, vocabulary = ctx.smoothing
        logits = logits.detach()  # they may wait for W, which their graph need not
        real = logits[:, : ctx.held]
        if ctx.held:
            # d(loss)/d(logit) = softmax (1 + 2 c log Z) - one_hot, each row times its own upstream gradient.
            scale = (grad * (1 + 2 * ctx.z_loss_coeff * log_z) / total).unsqueeze(1)
            hit = (grad * owned * (smoothing - 1)).unsqueeze(1)
            for block, values in _wide_blocks(real):
                values.mul_(scale[block])
                if smoothing:
                    values.sub_((grad[block] * (smoothing / vocabulary)).unsqueeze(1))
                values.scatter_add_(1, local[block].unsqueeze(1), hit[block])
        return logits, None, None, None, None, None, None


def vocab_parallel_cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    piece: VocabSlice,
    vocabulary: int,
    group: Group,
    *,
    z_loss_coeff: float = 0.0,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Loss of each token, at least in fp32: [n]. Consumes `logits`, whose memory becomes that of their gradient.

    logits [n, v_padded/tp] of this rank, targets [n] as global ids (the same on every rank), `vocabulary` = true v.
    `z_loss_coeff` c adds c (log Z)^2 (Chowdhery et al. 2022, section 5); `label_smoothing` spreads that share of the
    target over all v classes.
    """
    losses: torch.Tensor = _VocabCrossEntropy.apply(
        logits, targets, piece, vocabulary, group, z_loss_coeff, label_smoothing
    )
    return losses
