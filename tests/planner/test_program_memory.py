# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.model import ModelConfig
from megatron_core.planner.engine import DEEPSPEED_2021, MEGATRON_2021, MEGATRON_2022
from megatron_core.planner.parameters import stage_parameters
from megatron_core.planner.program_memory import held_microbatches, layer_bytes, program_memory
from tests.planner.workloads import workload

GPT3 = ModelConfig(
    num_layers=96,
    hidden_size=12288,
    num_attention_heads=96,
    seq_length=2048,
    max_position_embeddings=2048,
    vocab_size=51200,
)
SBH = 2048 * 12288
"""At microbatch 1."""
AS_H = 96 * 2048 / 12288


@pytest.mark.parametrize(
    ("sequence_parallel", "scores", "factor"),
    [
        (False, True, 10 + 24 / 8 + 5 * AS_H / 8),
        (True, True, (34 + 5 * AS_H) / 8),
        (True, False, 34 / 8),
    ],
)
def test_a_layer_keeps_what_table_2_says(sequence_parallel: bool, scores: bool, factor: float) -> None:
    work = workload(GPT3, tp=8, sequence_parallel=sequence_parallel, engine=MEGATRON_2022)
    assert layer_bytes(work, scores=scores) == pytest.approx(factor * SBH)


@pytest.mark.parametrize(
    ("schedule", "chunks", "held"), [("gpipe", 1, 64), ("1f1b", 1, 8), ("interleaved", 3, 8 * (1 + 7 / 24))]
)
def test_microbatches_in_flight(schedule: str, chunks: int, held: float) -> None:
    work = workload(GPT3, pp=8, chunks=chunks, microbatches=64, schedule=schedule)
    assert held_microbatches(work, 0) == pytest.approx(held)


def test_states_of_megatron_are_16_bytes_a_parameter_and_4_to_6_with_zero_2_and_the_host() -> None:
    work = workload(GPT3, engine=MEGATRON_2021)
    memory, count = program_memory(work, 0), stage_parameters(work, 0)
    assert memory.weights + memory.gradients + memory.optimizer == 16 * count
    offloaded = work.replace(engine=DEEPSPEED_2021, optimizer_offload=True, offload_gradients=True)
    memory = program_memory(offloaded, 0)
    assert memory.optimizer == 0 and memory.gradients == 2 * 2 * 500_000_000 < count


def test_zero_1_shares_out_16_bytes_and_flattens_the_rest() -> None:
    work = workload(GPT3, dp=8, engine=DEEPSPEED_2021).replace(distributed_optimizer=True)
    memory, count = program_memory(work, 0), stage_parameters(work, 0)
    assert memory.optimizer == 16 * count // 8
    without = program_memory(work.replace(distributed_optimizer=False), 0)
    assert without.optimizer == 12 * count
    assert without.buffers - memory.buffers == 8 * count - (2 * count + 2 * 500_000_000)
