# SPDX-License-Identifier: Apache-2.0
"""The work of one rank on a device whose operators are priced by measurement (a CPU): products, and operators by name.

Nothing is fused there, and an operator costs what its arithmetic takes rather than what it moves: GELU more than an
addition; RMSNorm, which torch makes of several operators, more than LayerNorm. So they are told apart, as `work.py`
need not. What each name stands for is measured by `training/measured_operators.py`.
"""

from megatron_core.config.model import ModelConfig
from megatron_core.planner.linears import linears
from megatron_core.planner.work import Matmul, Operator, Part, Shape

BACKWARD = " backward"
"""Ends the name of an operator's backward."""
SOFTMAX = 32
"""What a score costs beside its products, in dims of a head."""


def layer(shape: Shape) -> Part:
    """One transformer layer."""
    model, t, sb = shape.model, shape.tp, shape.tokens
    products = linears(model, t)
    core = _core(model, model.num_attention_heads // t * shape.micro_batch)
    operators = [
        *2 * [Operator(model.normalization, _stream(shape)), Operator("residual", _stream(shape))],
        *_rotated(model, sb * products.queries[0], sb * products.keys_and_values[0] // 2),
        core,
        Operator(model.activation, sb * products.down[1]),
        Operator("layer", 1),
    ]
    if model.hidden_dropout > 0:
        operators += 2 * [Operator("dropout", sb * model.hidden_size)]
    biased = model.add_bias_linear or model.add_qkv_bias
    biases = [out for out, _ in (products if model.add_bias_linear else products[:2])] if biased else []
    return Part(
        forward=(*(Matmul(sb, out, k) for out, k in products), *operators),
        input_gradient=(
            *(Matmul(sb, k, out) for out, k in products),
            *map(_backward, operators),
            *(Operator("bias" + BACKWARD, sb * out) for out in biases),
        ),
        weight_gradient=tuple(Matmul(out, k, sb) for out, k in products),
        core=(core,),
        tp_messages=2,
        message_bytes=shape.stream_bytes,
    )


def embedding(shape: Shape) -> Part:
    """Table look-up, positions, norm and dropout."""
    model, elements = shape.model, shape.tokens * shape.model.hidden_size
    operators = [Operator("embedding", elements)]
    if model.position_embedding_type == "learned_absolute":
        operators.append(Operator("residual", _stream(shape)))
    if model.embed_layernorm:
        operators.append(Operator(model.normalization, _stream(shape)))
    if model.hidden_dropout > 0:
        operators.append(Operator("dropout", elements))
    return Part(
        forward=tuple(operators),
        input_gradient=tuple(map(_backward, operators)),
        weight_gradient=(),
        tp_messages=1,
        message_bytes=shape.stream_bytes,
    )


def head(shape: Shape, vocabulary: int) -> Part:
    """Norm, logits and loss over a vocabulary of so many stored rows on this rank."""
    sb, h = shape.tokens, shape.model.hidden_size
    operators = [
        Operator(shape.model.normalization, _stream(shape)),
        Operator("cross entropy", sb * vocabulary),
        Operator("microbatch", 1),
    ]
    return Part(
        forward=(Matmul(sb, vocabulary, h), *operators),
        input_gradient=(Matmul(sb, h, vocabulary), *map(_backward, operators)),
        weight_gradient=(Matmul(vocabulary, h, sb),),
        tp_messages=1,
        message_bytes=shape.stream_bytes,
    )


def _stream(shape: Shape) -> int:
    """Elements of the residual stream that a rank works on outside of linears."""
    return shape.tokens * shape.model.hidden_size // (shape.tp if shape.sequence_parallel else 1)


def _core(model: ModelConfig, pairs: int) -> Operator:
    """Scores to weighted values of so many heads of samples."""
    name = "attention with dropout" if model.attention_dropout > 0 else "attention"
    return Operator(name, pairs * model.seq_length**2 * (model.head_dim + SOFTMAX))


def _rotated(model: ModelConfig, *sizes: int) -> list[Operator]:
    """What happens to queries and keys, of these sizes, between their product and attention."""
    found = []
    if model.qk_layernorm:
        found += [Operator(model.normalization, size) for size in sizes]
    if model.position_embedding_type == "rope":
        found += [Operator("rotary", size) for size in sizes]
    return found


def _backward(one: Operator) -> Operator:
    return Operator(one.name + BACKWARD, one.amount)
