# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.model import ModelConfig
from megatron_core.planner.memory_advice import memory_advice
from megatron_core.planner.stage_memory import stage_memory
from megatron_core.planner.workload import Recompute, Workload
from tests.planner.workloads import workload

MODEL = ModelConfig(
    num_layers=24,
    hidden_size=2048,
    num_attention_heads=16,
    seq_length=2048,
    max_position_embeddings=2048,
    vocab_size=51200,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)


def advice(work: Workload, capacity: float) -> list[str]:
    return memory_advice(work, 0, round(capacity * 1e9)).splitlines()


def test_it_names_what_is_needed_by_category() -> None:
    work = workload(MODEL, tp=2, dp=4, micro_batch=4)
    total = stage_memory(work, 0).total
    head = advice(work, 16)[0]
    assert head.startswith(
        f"The planner expects {total / 1e9:.1f} GB of 16.0 GB on stage 0 (tp 2 x pp 1 x dp 4): weights "
    )
    for category in ("gradients", "optimizer", "activations", "buffers", "allowance"):
        assert f"{category} " in head


def test_each_flag_is_tried_and_the_one_that_saves_most_comes_first() -> None:
    work = workload(MODEL, tp=2, dp=4, micro_batch=4)
    lines = advice(work, 30)[1:]
    flags = [line.split(":")[0].strip() for line in lines]
    assert sorted(flags) == sorted(
        [
            "--sequence-parallel",
            "--use-distributed-optimizer",
            "--micro-batch-size 2",
            "--recompute-granularity full",
            "--optimizer-cpu-offload",
        ]
    )
    numbers = [float(line.split(": ")[1].split()[0]) for line in lines]
    assert numbers == sorted(numbers) and numbers[0] < 30
    assert "still too much" not in lines[0]


def test_where_one_flag_is_not_enough_it_says_which_ones_together_are() -> None:
    work = workload(MODEL, tp=2, dp=4, micro_batch=4)
    assert advice(work, 8)[-1].startswith("  --sequence-parallel --use-distributed-optimizer")
    assert "Cut the model over more ranks" in advice(work, 2)[-1]


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_what_is_on_already_is_not_advised(micro_batch: int) -> None:
    work = workload(
        MODEL,
        recompute=Recompute(granularity="full"),
        optimizer_offload=True,
        offload_gradients=True,
        micro_batch=micro_batch,
    )
    assert advice(work, 1)[1:] == [
        "  No flag saves anything here: cut the model over more ranks, by tensor or pipeline parallelism."
    ]
