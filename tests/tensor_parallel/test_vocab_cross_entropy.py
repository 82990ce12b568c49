# SPDX-License-Identifier: Apache-2.0
"""Sharded cross-entropy against the dense formula, loss and gradient on every shard."""

import math

import pytest
import torch
import torch.nn.functional as F

from megatron_core.parallel.context import Group, ParallelContext
from megatron_core.tensor_parallel.vocab import vocab_slice
from megatron_core.tensor_parallel.vocab_cross_entropy import _wide_blocks, vocab_parallel_cross_entropy
from tests.rank_pool import ranks
from tests.small_model import ALONE, randn, small

LAYOUTS = ({"tp": 2}, {"tp": 4})


def _dense(logits: torch.Tensor, targets: torch.Tensor, z: float, smoothing: float) -> torch.Tensor:
    losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    return losses + z * logits.logsumexp(-1).square()


def _sharded(
    logits: torch.Tensor,
    targets: torch.Tensor,
    upstream: torch.Tensor,
    tp: Group,
    *,
    divisor: int = 1,
    z: float = 0.0,
    smoothing: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses [n] and this rank's gradient [n, rows]; padding logits are made large, so that counting them shows."""
    vocabulary = logits.shape[1]
    piece = vocab_slice(small(vocab_size=vocabulary, make_vocab_size_divisible_by=divisor), tp)
    local = logits.new_full((logits.shape[0], piece.rows), 50.0)
    local[:, : piece.stop - piece.start] = logits[:, piece.start : piece.stop]
    local.requires_grad_()
    losses = vocab_parallel_cross_entropy(
        local.clone(), targets, piece, vocabulary, tp, z_loss_coeff=z, label_smoothing=smoothing
    )
    losses.backward(upstream)
    grad = local.grad
    assert grad is not None and not grad[:, piece.stop - piece.start :].any(), "padding columns have a gradient"
    return losses.detach(), grad


def _check(
    tp: Group, logits: torch.Tensor, targets: torch.Tensor, tolerance: float, divisor: int = 1, **terms: float
) -> None:
    upstream = randn(len(targets), seed=7).to(logits.dtype)
    losses, grad = _sharded(logits, targets, upstream, tp, divisor=divisor, **terms)
    whole = logits.clone().requires_grad_()
    expected = _dense(whole, targets, terms.get("z", 0.0), terms.get("smoothing", 0.0))
    expected.backward(upstream)
    piece = vocab_slice(small(vocab_size=logits.shape[1], make_vocab_size_divisible_by=divisor), tp)
    torch.testing.assert_close(losses, expected.detach(), rtol=tolerance, atol=tolerance)
    mine = grad[:, : piece.stop - piece.start]
    torch.testing.assert_close(mine, whole.grad[:, piece.start : piece.stop], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("targets_in", [range(64), range(3, 10)], ids=["anywhere", "one_shard"])
@ranks(*LAYOUTS)
def test_fp32_equals_dense(ctx: ParallelContext, targets_in: range, smoothing: float) -> None:
    logits = randn(4 * 16, 64).float()
    targets = torch.randint(targets_in.start, targets_in.stop, (64,), generator=torch.Generator().manual_seed(1))
    _check(ctx.tp, logits, targets, 1e-6, smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@ranks(*LAYOUTS)
def test_shifting_all_logits_changes_nothing(ctx: ParallelContext, smoothing: float) -> None:
    logits = (randn(64, 64) * 64).round().float() / 64  # these survive the shift exactly
    targets, upstream = torch.arange(64), torch.ones(64)
    plain = _sharded(logits, targets, upstream, ctx.tp, smoothing=smoothing)
    for shift in (1e4, -1e4):
        moved = _sharded(logits + shift, targets, upstream, ctx.tp, smoothing=smoothing)
        rounding = 1e-6 if smoothing == 0 else 1e-3
        torch.testing.assert_close(moved[0], plain[0], rtol=rounding, atol=rounding)
        torch.testing.assert_close(moved[1], plain[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("terms", [{}, {"z": 1e-2}, {"smoothing": 0.1}, {"z": 1e-2, "smoothing": 0.1}])
@pytest.mark.parametrize("divisor", [1, 128])
@ranks(*LAYOUTS)
def test_vocabulary_37_in_float64(ctx: ParallelContext, divisor: int, terms: dict) -> None:
    _check(ctx.tp, 3 * randn(40, 37), torch.arange(40) % 37, 1e-12, divisor, **terms)


@pytest.mark.parametrize("divisor", [1, 128])
@ranks({"tp": 2}, {"tp": 4})
def test_equal_logits_cost_the_log_of_the_true_vocabulary(ctx: ParallelContext, divisor: int) -> None:
    losses, _ = _sharded(torch.zeros(5, 37), torch.arange(5), torch.ones(5), ctx.tp, divisor=divisor)
    assert losses.tolist() == pytest.approx([math.log(37)] * 5, abs=1e-6)


@pytest.mark.parametrize("shape", [(40, 37), (70, 9000)], ids=["one_block", "many"])
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2**-9), (torch.float16, 2**-11)])
def test_16bit_logits_give_fp32_losses(dtype: torch.dtype, tolerance: float, shape: tuple[int, int]) -> None:
    """And a gradient of which nothing but the exponentials and the result was rounded."""
    rows = shape[0]
    logits, targets, upstream = randn(*shape).to(dtype), torch.arange(rows) % 37, torch.ones(rows)
    losses, grad = _sharded(logits, targets, upstream, ALONE.tp)
    whole = logits.double().requires_grad_()
    expected = _dense(whole, targets, 0.0, 0.0)
    expected.sum().backward()
    assert losses.dtype == torch.float32 and grad.dtype == dtype
    torch.testing.assert_close(losses.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad.double(), whole.grad, rtol=2 * tolerance, atol=tolerance)


def test_many_rows_are_worked_off_in_blocks() -> None:
    _check(ALONE.tp, randn(70, 9000), torch.arange(70), 1e-12)  # a block holds 29 rows


def test_the_gradient_takes_the_memory_of_the_logits() -> None:
    logits = randn(4, 37).requires_grad_() * 1.0
    piece = vocab_slice(small(make_vocab_size_divisible_by=1), ALONE.tp)
    losses = vocab_parallel_cross_entropy(logits, torch.arange(4), piece, 37, ALONE.tp)
    pointer = logits.data_ptr()
    seen = []
    logits.register_hook(lambda grad: seen.append(grad.data_ptr()))
    losses.sum().backward()
    assert seen == [pointer]


@pytest.mark.parametrize(("device", "limit"), [("cpu", 1 << 20), ("meta", 1 << 28)])
def test_blocks_bound_what_is_held_in_fp32(device: str, limit: int) -> None:
    """On an accelerator too: 16-bit logits of long batches would else be copied whole."""
    shape = (100_000, 50_304) if device == "meta" else (1000, 1000)
    blocks = [block for block, _ in _wide_blocks(torch.empty(shape, dtype=torch.bfloat16, device=device))]
    assert [block.start for block in blocks[1:]] == [block.stop for block in blocks[:-1]]
    assert (blocks[0].start, blocks[-1].stop) == (0, shape[0])
    assert max(block.stop - block.start for block in blocks) * shape[1] * 4 <= limit
