# SPDX-License-Identifier: Apache-2.0
from megatron_core.config.model import ModelConfig
from megatron_core.planner.linears import Linears, linears

MODEL = ModelConfig(
    hidden_size=48,
    num_attention_heads=12,
    group_query_attention=True,
    num_query_groups=2,
    ffn_hidden_size=96,
    swiglu=True,
)


def test_a_rank_has_its_share_of_each() -> None:
    assert linears(MODEL, 2) == Linears((24, 48), (8, 48), (48, 24), (96, 48), (48, 48))


def test_ranks_beyond_the_groups_hold_one_each() -> None:
    assert linears(MODEL, 4).keys_and_values == (8, 48)
