# SPDX-License-Identifier: Apache-2.0
"""Against table 2 of Korthikanti et al. 2022; against the real code see test_stage_memory.py."""

import pytest

from megatron_core.config.model import ModelConfig
from megatron_core.planner.layer_bytes import LayerBytes
from megatron_core.planner.workload import Recompute
from tests.planner.workloads import workload

GPT3 = ModelConfig(
    num_layers=96,
    hidden_size=12288,
    num_attention_heads=96,
    seq_length=2048,
    max_position_embeddings=2048,
    vocab_size=51200,
    attention_dropout=0.0,
)
SBH = 2048 * 12288
"""At microbatch 1."""


@pytest.mark.parametrize(
    ("tp", "sequence_parallel", "factor"), [(1, False, 34), (8, False, 10 + 24 / 8), (8, True, 34 / 8)]
)
def test_without_scores_a_layer_keeps_what_the_paper_says(tp: int, sequence_parallel: bool, factor: float) -> None:
    size = LayerBytes(workload(GPT3, tp=tp, sequence_parallel=sequence_parallel))
    assert size.stream + size.kept == pytest.approx(factor * SBH, rel=0.002)


def test_parts_that_are_recomputed_are_not_kept() -> None:
    def kept(*modules: str) -> int:
        return LayerBytes(workload(GPT3, recompute=Recompute(granularity="selective", modules=modules))).kept

    assert kept("core_attn") - kept("core_attn", "mlp") == 16 * SBH
    assert kept("mlp") - kept("mlp", "layernorm") == 4 * SBH


def test_a_cpu_s_rmsnorm_keeps_what_lies_between() -> None:
    model = ModelConfig(
        num_layers=1, hidden_size=64, num_attention_heads=4, seq_length=32, vocab_size=9, normalization="RMSNorm"
    )
    work = workload(model, precision="fp32")
    stream = LayerBytes(work).stream
    assert LayerBytes(work, on_cpu=True).norm - LayerBytes(work).norm == stream


def test_weight_gradients_of_another_type_are_made_first() -> None:
    work = workload(GPT3)
    assert LayerBytes(work).weight_temporary(10) == 20
    assert LayerBytes(work.replace(gradients_in_bf16=True)).weight_temporary(10) == 0
