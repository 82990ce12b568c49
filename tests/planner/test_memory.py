# SPDX-License-Identifier: Apache-2.0
from megatron_core.config.model import ModelConfig
from megatron_core.planner.engine import MEGATRON_2022
from megatron_core.planner.hardware import hardware
from megatron_core.planner.memory import MemoryModel
from megatron_core.planner.program_memory import program_memory
from megatron_core.planner.stage_memory import stage_memory
from tests.planner.workloads import workload

MODEL = ModelConfig(
    num_layers=4, hidden_size=64, num_attention_heads=4, seq_length=32, max_position_embeddings=32, vocab_size=9
)


def test_each_program_has_its_own_memory() -> None:
    ours, cluster = workload(MODEL, pp=2), hardware("dgx-a100-80")
    theirs = ours.replace(engine=MEGATRON_2022)
    assert MemoryModel(ours, cluster).stages == tuple(stage_memory(ours, stage) for stage in range(2))
    assert MemoryModel(theirs, cluster).stages == tuple(program_memory(theirs, stage) for stage in range(2))
