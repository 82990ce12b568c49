# SPDX-License-Identifier: Apache-2.0
"""Times this machine's operators and matrix products, as the model asks for them, for the planner's prices.

Names and amounts are those of `planner/eager_work.py`. Each is timed at several sizes, forward and backward; buffers
are made anew each time as in a step. Seconds are those in which the thread computed: what else runs on the machine
takes turns with it, and would otherwise be measured too.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from megatron_core.attention.core import attend, attend_with_dropout
from megatron_core.attention.rotary import RotaryTable, apply_rotary
from megatron_core.kernels.dropout import DropoutKey, attention_keep_mask, hidden_dropout
from megatron_core.kernels.matmul import add_weight_gradient, input_gradient, linear
from megatron_core.optim.adamw import AdamHyper, Moments, adamw_update
from megatron_core.optim.grad_clip import sum_of_squares
from megatron_core.parallel.context import Group
from megatron_core.planner.eager_work import BACKWARD, SOFTMAX
from megatron_core.planner.hardware import MeasuredMatmul, MeasuredOperator
from megatron_core.tensor_parallel.vocab import VocabSlice
from megatron_core.tensor_parallel.vocab_cross_entropy import vocab_parallel_cross_entropy

WIDTH, HEAD_DIM, VOCABULARY = 256, 64, 4096
"""Last dims of what is measured; times go by elements."""
TOKENS = (16, 256, 2048, 8192)
SEQUENCES = (32, 128, 512, 1024)
PARAMETERS = (10_000, 1_000_000, 16_000_000)
ROWS, FEATURES = (128, 512, 2048), (64, 128, 256, 512, 1024, 2048)
LARGEST_PRODUCT = 2 * 2048 * 1024 * 2048
"""FLOPs; larger ones run as fast."""
_SECONDS, _TIMES = 0.03, 5
"""A measurement ends when it has taken so long and so often."""
_ELSEWHERE, _MOST_ELSEWHERE = 16, 4_000_000
"""fp32 elements that are changed between a forward and its backward: for each of the operator's, and at most."""
_ALONE = Group("tp", (0,), 0)

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class _Case:
    """An operator at one size."""

    name: str
    amount: int
    make: Callable[[], Tensors]
    """New inputs; those of floating point take gradients."""
    apply: Callable[..., torch.Tensor]


def measure_operators(dtype: torch.dtype) -> Iterator[MeasuredOperator]:
    """Every operator at every size, on the threads that torch has."""
    for case in _cases(dtype):
        forward, backward = _timed_with_backward(case)
        yield MeasuredOperator(name=case.name, amount=case.amount, seconds=forward)
        yield MeasuredOperator(name=case.name + BACKWARD, amount=case.amount, seconds=backward)
    for tokens in TOKENS:
        grad = torch.randn(tokens, WIDTH, dtype=dtype)
        seconds = timed(partial(torch.sum, grad, 0))
        yield MeasuredOperator(name="bias" + BACKWARD, amount=grad.numel(), seconds=seconds)
    yield from _update(dtype)


def measure_matmuls(dtype: torch.dtype) -> Iterator[MeasuredMatmul]:
    """The three products of linears of many shapes."""
    for rows in ROWS:
        for k in FEATURES:
            for n in FEATURES:
                if 2 * rows * k * n <= LARGEST_PRODUCT:
                    yield from _products(rows, k, n, dtype)
    yield from _products(ROWS[1], FEATURES[2], 16384, dtype)  # a head


def timed(
    action: Callable[[], object], seconds: float = _SECONDS, between: Callable[[], object] = lambda: None
) -> float:
    """Seconds that an action computes, once it has run; it is repeated for so many in all, with `between` before."""
    action()
    times: list[float] = []
    while len(times) < _TIMES or sum(times) < seconds:
        between()
        begin = time.thread_time()
        action()
        times.append(time.thread_time() - begin)
    return statistics.median(times)


def _timed_with_backward(case: _Case) -> tuple[float, float]:
    elsewhere = torch.zeros(_MOST_ELSEWHERE)
    forwards: list[float] = []
    backwards: list[float] = []
    while len(forwards) <= _TIMES or sum(forwards) + sum(backwards) < _SECONDS:
        inputs = case.make()
        leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()]
        begin = time.thread_time()
        out = case.apply(*inputs)
        middle = time.thread_time()
        # Until its backward a step does much else, of the same size: caches forget what forward has left.
        elsewhere[: _ELSEWHERE * max(out.numel(), inputs[0].numel())].add_(1)
        grad = torch.ones_like(out)
        start = time.thread_time()
        torch.autograd.grad(out, leaves, grad)
        backwards.append(time.thread_time() - start)
        forwards.append(middle - begin)
    return statistics.median(forwards[1:]), statistics.median(backwards[1:])


def _products(rows: int, k: int, n: int, dtype: torch.dtype) -> Iterator[MeasuredMatmul]:
    x, weight, grad = (torch.randn(shape, dtype=dtype) for shape in ((rows, k), (n, k), (rows, n)))
    total = torch.zeros(n, k)
    elsewhere = torch.zeros(min(4 * (x.numel() + weight.numel() + grad.numel()), _MOST_ELSEWHERE))
    for m, columns, inner, product in (
        (rows, n, k, lambda: linear(x, weight)),
        (rows, k, n, lambda: input_gradient(grad, weight)),
        (n, k, rows, lambda: add_weight_gradient(total, grad, x)),
    ):
        yield MeasuredMatmul(
            m=m, n=columns, k=inner, tflops=2e-12 * rows * k * n / timed(product, between=partial(elsewhere.add_, 1))
        )


def _cases(dtype: torch.dtype) -> Iterator[_Case]:
    for tokens in TOKENS:
        yield from _elementwise(tokens, dtype)
        yield _embedding(tokens, dtype)
    for sequence in SEQUENCES:
        yield from _attention(sequence, dtype)
    for tokens in TOKENS[:3]:
        yield _Case(
            "cross entropy",
            tokens * VOCABULARY,
            partial(_logits, tokens, dtype),
            partial(_losses, torch.randint(VOCABULARY, (tokens,))),
        )


def _logits(tokens: int, dtype: torch.dtype) -> Tensors:
    return (torch.randn(tokens, VOCABULARY, dtype=dtype),)


def _losses(targets: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    piece = VocabSlice(VOCABULARY, 0, VOCABULARY)
    return vocab_parallel_cross_entropy(logits.view_as(logits), targets, piece, VOCABULARY, _ALONE).sum()


def _elementwise(tokens: int, dtype: torch.dtype) -> Iterator[_Case]:
    """What is done to [s, 1, h], with norms' weights and the like of h."""
    shape, elements = (tokens, 1, WIDTH), tokens * WIDTH

    def case(name: str, apply: Callable[..., torch.Tensor], *more: tuple[int, ...], scale: int = 1) -> _Case:
        first = (tokens, 1, scale * WIDTH)
        return _Case(name, elements, lambda: tuple(torch.randn(one, dtype=dtype) for one in (first, *more)), apply)

    yield case("LayerNorm", lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b), (WIDTH,), (WIDTH,))
    yield case("RMSNorm", lambda x, w: F.rms_norm(x, (WIDTH,), w), (WIDTH,))
    yield case("residual", lambda x: x + x.view_as(x))  # its backward adds up what both branches hand back
    yield case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))
    yield case("gelu_exact", F.gelu)
    yield case("squared_relu", lambda x: F.relu(x).square())
    yield case("swiglu", lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], scale=2)
    heads = (tokens, 1, WIDTH // HEAD_DIM, HEAD_DIM)
    angles = torch.rand(tokens, 1, 1, HEAD_DIM // 2, dtype=dtype)
    table = RotaryTable(angles.cos(), angles.sin(), interleaved=False)
    yield case("rotary", lambda x: apply_rotary(x.view(heads), table))
    key = DropoutKey(1, 1, (0,))
    yield case("dropout", lambda x: hidden_dropout(x, 0.1, key, 0, "mlp_output", range(shape[0]), shape[0]))


def _embedding(tokens: int, dtype: torch.dtype) -> _Case:
    """As `tensor_parallel/embedding.py` looks rows up and adds gradients to them."""
    table, total = torch.randn(VOCABULARY, WIDTH, dtype=dtype), torch.zeros(VOCABULARY, WIDTH)
    ids, owned = torch.randint(VOCABULARY, (tokens,)), torch.ones(tokens, 1)

    class Lookup(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, anchor: torch.Tensor) -> torch.Tensor:
            return table.index_select(0, ids) * owned.to(dtype)

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            total.index_add_(0, ids, (grad * owned).to(total.dtype))
            return grad.new_zeros(())

    return _Case("embedding", tokens * WIDTH, lambda: (torch.zeros((), dtype=dtype),), Lookup.apply)


def _attention(sequence: int, dtype: torch.dtype) -> Iterator[_Case]:
    """Four heads of one sample, which come and go as [s, b, a d]."""
    heads = 4
    amount = heads * sequence**2 * (HEAD_DIM + SOFTMAX)
    key, scale = DropoutKey(1, 1, (0,)), HEAD_DIM**-0.5

    def make() -> Tensors:
        return tuple(torch.randn(sequence, 1, heads, HEAD_DIM, dtype=dtype) for _ in range(3))

    def merged(out: torch.Tensor) -> torch.Tensor:
        return out.permute(2, 0, 1, 3).reshape(sequence, 1, -1)

    def plain(*qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.permute(1, 2, 0, 3) for x in qkv)
        return merged(attend(q, k, v, None, scale))

    def dropped(*qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.permute(1, 2, 0, 3) for x in qkv)
        keep = attention_keep_mask(key, 0.1, 0, range(heads), q)
        return merged(attend_with_dropout(q, k, v, None, scale, keep, 0.1))

    yield _Case("attention", amount, make, plain)
    yield _Case("attention with dropout", amount, make, dropped)


def _update(dtype: torch.dtype) -> Iterator[MeasuredOperator]:
    """AdamW with its norm, and the clearing of gradients, by parameters."""
    hyper = AdamHyper(0.9, 0.95, 1e-8)
    for count in PARAMETERS:
        master, grad, m, v = (torch.zeros(count) for _ in range(4))
        weights = master if dtype == torch.float32 else master.to(dtype)

        def update(
            master: torch.Tensor = master, grad: torch.Tensor = grad, m: torch.Tensor = m, v: torch.Tensor = v,
            weights: torch.Tensor = weights,
        ) -> None:  # fmt: skip
            sum_of_squares([grad])
            adamw_update(
                master, grad, Moments(m, v), hyper, applied_steps=1, lr=1e-4, weight_decay=0.1, grad_factor=0.5
            )
            if weights is not master:
                weights.copy_(master)

        yield MeasuredOperator(name="update", amount=count, seconds=timed(update))
        yield MeasuredOperator(name="clear", amount=count, seconds=timed(grad.zero_))
