# SPDX-License-Identifier: Apache-2.0
from megatron_core.config.model import ModelConfig
from megatron_core.planner.memory_parts import COMMUNICATOR_BYTES, CONTEXT_BYTES, FRAGMENTED, Memory, allowance
from tests.planner.workloads import workload

MODEL = ModelConfig(num_layers=4, hidden_size=64, num_attention_heads=4, seq_length=32, vocab_size=9)


def test_what_is_no_tensor_grows_with_groups_and_with_tensors() -> None:
    alone, three = workload(MODEL), workload(MODEL, tp=2, pp=2, dp=2)
    assert allowance(alone, 0) == CONTEXT_BYTES
    assert allowance(three, 0) - allowance(alone, 0) == 3 * COMMUNICATOR_BYTES
    assert allowance(alone, 10**9) - allowance(alone, 0) == FRAGMENTED * 10**9


def test_the_total_has_all_and_live_has_the_tensors() -> None:
    memory = Memory(weights=1, gradients=2, optimizer=3, activations=4, buffers=5, allowance=6)
    assert (memory.total, memory.live) == (21, 15)
