# SPDX-License-Identifier: Apache-2.0
"""What chunks have beside their layers; against the real code see test_stage_memory.py."""

from megatron_core.config.model import ModelConfig
from megatron_core.planner.chunk_bytes import chunk_bytes
from megatron_core.planner.layer_bytes import LayerBytes
from megatron_core.planner.workload import Recompute
from tests.planner.workloads import workload

MODEL = ModelConfig(
    num_layers=8,
    hidden_size=256,
    num_attention_heads=8,
    seq_length=128,
    max_position_embeddings=128,
    vocab_size=20480,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)


def test_a_group_of_recomputed_layers_keeps_its_input_alone() -> None:
    size = LayerBytes(workload(MODEL))
    for layers, inputs in ((1, 2), (2, 1)):
        work = workload(MODEL, pp=4, recompute=Recompute(granularity="full", num_layers=layers))
        middle = chunk_bytes(work, 1)
        assert middle.kept == inputs * size.stream
        assert middle.backward > layers * size.kept


def test_the_last_chunk_has_logits_and_the_first_what_looking_up_needs() -> None:
    work = workload(MODEL, pp=4)
    first, middle, last = (chunk_bytes(work, k) for k in (0, 1, 3))
    logits = 128 * 20480 * 2
    assert logits < last.kept - middle.kept < 1.2 * logits
    assert first.kept - middle.kept == 9 * 128
    assert last.forward == 2 * logits  # a block in fp32, which holds them all


def test_offloaded_layers_leave_the_chunk_s_input_behind() -> None:
    work = workload(MODEL, pp=4, offloaded_layers=2)
    assert chunk_bytes(work, 1).kept == LayerBytes(work).stream
    assert chunk_bytes(work, 0).kept == 9 * 128
