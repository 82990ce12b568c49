# SPDX-License-Identifier: Apache-2.0
"""The work of one rank as data: matrix products and passes over memory, with exact integer sizes; no time in it.

What one layer, the embedding and the head ask of a rank follows from model, tp and microbatch alone. Letters as in
docs/notation.md; bytes are those of 16-bit activations unless told otherwise.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from megatron_core.config.model import ModelConfig
from megatron_core.planner.linears import linears


@dataclass(frozen=True)
class Matmul:
    """`batch` products [m, k] x [k, n]."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flops(self) -> int:
        """Two a multiply-add."""
        return 2 * self.m * self.n * self.k * self.batch


@dataclass(frozen=True)
class Pass:
    """Elementwise kernels that move so many bytes between them."""

    nbytes: int
    kernels: int = 1


@dataclass(frozen=True)
class Operator:
    """What is priced by measurements of its name: so many elements, or bytes of a message, or times."""

    name: str
    amount: int


Work = tuple[Matmul | Pass | Operator, ...]


@dataclass(frozen=True)
class Part:
    """A part of the model for one microbatch, as one rank computes it."""

    forward: Work
    input_gradient: Work
    """Of backward all but the weight gradients of linears."""
    weight_gradient: Work
    core: Work = ()
    """Of forward, what selective recomputation does again: scores to weighted values."""
    tp_messages: int = 0
    """Sums over tp in forward, and as many in backward, each of `message_bytes`."""
    message_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What decides the sizes of a rank's work."""

    model: ModelConfig
    tp: int
    micro_batch: int
    sequence_parallel: bool
    itemsize: int = 2
    """Bytes of an activation."""
    flash_attention: bool = True

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch, s b."""
        return self.model.seq_length * self.micro_batch

    @property
    def stream_bytes(self) -> int:
        """The residual stream of a microbatch, whole: s b h elements."""
        return self.tokens * self.model.hidden_size * self.itemsize


def flops(work: Iterable[Matmul | Pass | Operator]) -> int:
    """FLOPs of the products in it."""
    return sum(one.flops for one in work if isinstance(one, Matmul))


def layer(shape: Shape) -> Part:
    """One transformer layer."""
    model, t, sb, item = shape.model, shape.tp, shape.tokens, shape.itemsize
    queries, keys_and_values, output, up, down = linears(model, t)
    # Queries, keys and values are one product.
    products = [(queries[0] + keys_and_values[0], model.hidden_size), output, up, down]
    core_forward, core_backward = _attention_core(shape, model.num_attention_heads // t, model.head_dim)
    stream, cut = shape.stream_bytes, (shape.tp if shape.sequence_parallel else 1)
    inner = sb * queries[0] * item
    # Forward: two norms (read, write), two of bias, dropout and residual (read two, write, mask), reordering of heads,
    # activation. Backward reads what forward read and the gradient, and writes one.
    residual = 2 * 2 * stream + 2 * 7 * stream // 2
    residual_backward = 2 * 4 * stream + 2 * 5 * stream // 2
    before_activation, activated = sb * up[0] * item, sb * down[1] * item
    forward = (
        *(Matmul(sb, out, k) for out, k in products),
        *core_forward,
        Pass(residual // cut, 4),
        Pass(6 * inner, 4),
        Pass(before_activation + activated),
    )
    return Part(
        forward=forward,
        input_gradient=(
            *(Matmul(sb, k, out) for out, k in products),
            *core_backward,
            Pass(residual_backward // cut, 6),
            Pass(6 * inner, 4),
            Pass(2 * before_activation + activated, 2),
        ),
        weight_gradient=tuple(Matmul(out, k, sb) for out, k in products),
        core=core_forward,
        tp_messages=2,
        message_bytes=stream,
    )


def _attention_core(shape: Shape, heads: int, d: int) -> tuple[Work, Work]:
    """Scores, softmax, dropout and weighted values, forward and backward. The full square of scores is computed."""
    s, pairs = shape.model.seq_length, heads * shape.micro_batch
    scores, values = Matmul(s, s, d, pairs), Matmul(s, d, s, pairs)
    if shape.flash_attention:
        # Half of the square lies above the diagonal and is left out; backward computes the scores again.
        half = (Matmul(s, s // 2, d, pairs), Matmul(s, d, s // 2, pairs))
        return half, (half[0], half[0], half[1], half[1], half[1])
    square = pairs * s * s * shape.itemsize
    dropped = shape.model.attention_dropout > 0
    # softmax: read, write; dropout: read, write, mask of one byte. Backward: read, write of dropout; read two, write.
    forward = Pass(2 * square + (5 * square // 2 if dropped else 0), 2)
    backward = Pass(3 * square + (5 * square // 2 if dropped else 0), 2)
    return (scores, values, forward), (scores, scores, values, values, backward)


def embedding(shape: Shape) -> Part:
    """Table look-up, positions and dropout."""
    stream = shape.stream_bytes
    return Part(
        forward=(Pass(5 * stream, 4),),
        input_gradient=(Pass(4 * stream, 3),),
        weight_gradient=(),
        tp_messages=1,
        message_bytes=stream,
    )


def head(shape: Shape, vocabulary: int) -> Part:
    """Logits and loss over a vocabulary of so many stored rows on this rank."""
    sb, h = shape.tokens, shape.model.hidden_size
    logits = sb * vocabulary
    # Forward: 16-bit logits to fp32, maximum, exponential, sum. Backward: fp32 to 16-bit.
    return Part(
        forward=(Matmul(sb, vocabulary, h), Pass((shape.itemsize + 12) * logits, 4)),
        input_gradient=(Matmul(sb, h, vocabulary), Pass((6 + shape.itemsize) * logits, 3)),
        weight_gradient=(Matmul(vocabulary, h, sb),),
        tp_messages=1,
        message_bytes=shape.stream_bytes,
    )
