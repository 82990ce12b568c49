# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from megatron_core.config.model import ModelConfig
from megatron_core.planner import eager_work, work
from megatron_core.planner.constants import Constants
from megatron_core.planner.step_time import StepModel
from megatron_core.planner.work import Operator, Shape, flops
from tests.planner.measured import cpu
from tests.planner.workloads import workload

GPT2 = ModelConfig(
    num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=32, max_position_embeddings=32, vocab_size=128,
    hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
LLAMA = dataclasses.replace(
    GPT2, normalization="RMSNorm", swiglu=True, add_bias_linear=False, qk_layernorm=True,
    position_embedding_type="rope", group_query_attention=True, num_query_groups=2,
)  # fmt: skip


def shape(model: ModelConfig, tp: int = 1) -> Shape:
    return Shape(model=model, tp=tp, micro_batch=2, sequence_parallel=False, itemsize=4, flash_attention=False)


def amounts(part: work.Work) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in part:
        if isinstance(one, Operator):
            found[one.name] = found.get(one.name, 0) + one.amount
    return found


@pytest.mark.parametrize("model", [GPT2, LLAMA])
@pytest.mark.parametrize("tp", [1, 2])
def test_products_are_those_of_fused_work_but_for_attention(model: ModelConfig, tp: int) -> None:
    eager, fused = eager_work.layer(shape(model, tp)), work.layer(shape(model, tp))
    assert flops(eager.forward) == flops(fused.forward) - flops(fused.core)
    assert flops(eager.weight_gradient) == flops(fused.weight_gradient) == flops(eager.forward)
    assert eager.message_bytes == fused.message_bytes


def test_operators_follow_the_models_features() -> None:
    tokens = 64
    plain, llama = (amounts(eager_work.layer(shape(model, 2)).forward) for model in (GPT2, LLAMA))
    assert plain["LayerNorm"] == plain["residual"] == 2 * tokens * 64
    assert plain["gelu_tanh"] == tokens * 4 * 64 // 2 and "rotary" not in plain
    assert llama["RMSNorm"] == 2 * tokens * 64 + tokens * (2 + 1) * 16
    assert llama["rotary"] == tokens * (2 + 1) * 16 and "swiglu" in llama
    assert plain["attention"] == 2 * 2 * 32 * 32 * (16 + 32)
    backward = amounts(eager_work.layer(shape(GPT2)).input_gradient)
    assert backward["bias backward"] == tokens * (64 + 128 + 64 + 256 + 64)
    dropped = dataclasses.replace(GPT2, hidden_dropout=0.1, attention_dropout=0.1)
    assert {"dropout", "attention with dropout"} <= set(amounts(eager_work.layer(shape(dropped)).forward))


def test_a_step_costs_what_was_measured() -> None:
    """Every operator takes a microsecond, products next to nothing, so that operators are counted."""
    names = ["LayerNorm", "residual", "attention", "gelu_tanh", "layer", "embedding", "cross entropy", "microbatch"]
    box = cpu({name + end: [(1, 1e-6), (10**9, 1e-6)] for name in names for end in ("", " backward")})
    more = cpu({name: [(1, 1e-6), (10**9, 1e-6)] for name in ("bias backward", "update", "clear", "step")})
    fast = dataclasses.replace(box.device.measured_matmuls[0], tflops=1e9)
    box = box.with_operators(more.device.measured_operators)
    box = dataclasses.replace(box, device=dataclasses.replace(box.device, measured_matmuls=(fast,)))
    step = StepModel(workload(GPT2, microbatches=3, precision="fp32"), box, Constants()).step()
    per_layer = 2 * 7 + 5  # two norms and two residuals, attention, activation, the rest; backward; five biases
    per_microbatch = 2 * per_layer + 2 * 2 + 2 * 3  # table and positions; norm, loss and the rest
    assert step.compute == pytest.approx(3 * per_microbatch * 1e-6, rel=1e-3)
    assert step.optimizer == pytest.approx(3e-6) and step.total == pytest.approx(step.compute + 3e-6, rel=1e-6)
