# SPDX-License-Identifier: Apache-2.0
"""The matrices of one layer as one tp rank holds them: what products, parameters and gradients are all counted from."""

from typing import NamedTuple

from megatron_core.config.model import ModelConfig


class Linears(NamedTuple):
    """(features out, features in) of each, in order of declaration."""

    queries: tuple[int, int]
    keys_and_values: tuple[int, int]
    output: tuple[int, int]
    up: tuple[int, int]
    """With the gate, where there is one."""
    down: tuple[int, int]


def linears(model: ModelConfig, tp: int) -> Linears:
    """Those of any layer. Where tp is larger than the number of query groups a rank holds one of them."""
    h, d, f = model.hidden_size, model.head_dim, model.ffn_size // tp
    queries, groups = model.num_attention_heads // tp * d, max(model.query_groups // tp, 1)
    return Linears(
        queries=(queries, h),
        keys_and_values=(2 * groups * d, h),
        output=(h, queries),
        up=((2 if model.swiglu else 1) * f, h),
        down=(h, f),
    )
