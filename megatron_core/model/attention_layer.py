# SPDX-License-Identifier: Apache-2.0
"""Builds the self-attention of one layer for one tp rank: which heads it holds, and how its weights are cut.

q.weight [a, d, h] is cut along heads and kv.weight [g, 2, d, h] along groups. With more tp ranks than groups (a
multiple), tp / g neighbours hold the same group: each sees the gradient of its own query heads, a part of the sum over
the `kv` group.
"""

from megatron_core.attention.self_attention import SelfAttention
from megatron_core.model.norm import Norm
from megatron_core.model.parameters import ParameterFactory
from megatron_core.model.recompute import recomputed
from megatron_core.parallel.context import Group
from megatron_core.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from megatron_core.tensor_parallel.shard_spec import ShardSpec, cut_spec, even_slice


def _group_spec(name: str, shape: tuple[int, ...], tp: Group, *, decayed: bool) -> ShardSpec:
    groups = shape[0]
    replicas = max(tp.size // groups, 1)
    start = tp.coordinate * groups // tp.size
    return ShardSpec(
        name=name,
        shape=shape,
        dim=0,
        start=start,
        stop=start + max(groups // tp.size, 1),
        counted=tp.coordinate % replicas == 0,
        partial="kv" if replicas > 1 else None,
        decayed=decayed,
    )


def build_attention(factory: ParameterFactory, layer: int) -> SelfAttention:
    """The attention of global layer number `layer`. Heads must divide by tp, and groups by tp or tp by groups."""
    config, ctx = factory.config, factory.ctx
    a, g, d, h = config.num_attention_heads, config.query_groups, config.head_dim, config.hidden_size
    name = f"layers.{layer}.attention"
    q_weight = factory.weight(cut_spec(f"{name}.q.weight", (a, d, h), 0, ctx))
    kv_weight = factory.weight(_group_spec(f"{name}.kv.weight", (g, 2, d, h), ctx.tp, decayed=True))
    q_bias = kv_bias = None
    if config.add_bias_linear or config.add_qkv_bias:
        q_bias = factory.column_bias(f"{name}.q.bias", (a, d), 0)
        kv_bias = factory.constant(_group_spec(f"{name}.kv.bias", (g, 2, d), ctx.tp, decayed=False), 0.0)
    output_spec = cut_spec(f"{name}.output.weight", (h, a, d), 1, ctx)
    output_bias = factory.row_bias(f"{name}.output.bias") if config.add_bias_linear else None
    q_norm = k_norm = None
    if config.qk_layernorm:
        # Every rank normalises its own heads only, so these gradients are partial with or without sequence parallelism.
        q_norm = Norm(factory, f"{name}.q_norm", d, partial=True)
        k_norm = Norm(factory, f"{name}.k_norm", d, partial=True)
    sequence_parallel, queue = factory.sequence_parallel, factory.queue
    return SelfAttention(
        config,
        layer,
        range(*even_slice(a, ctx.tp)),
        ColumnParallelLinear([q_weight, kv_weight], [q_bias, kv_bias], ctx.tp, sequence_parallel, queue),
        RowParallelLinear(
            factory.weight(output_spec, factory.output_std), output_bias, ctx.tp, sequence_parallel, queue
        ),
        q_norm,
        k_norm,
        recomputed if "core_attn" in factory.recompute.modules else None,
    )
