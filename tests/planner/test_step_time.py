# SPDX-License-Identifier: Apache-2.0
"""What a step's time is made of; how right it is, is held by test_rows.py."""

import dataclasses

import pytest

from megatron_core.config.model import ModelConfig
from megatron_core.errors import ConfigError
from megatron_core.planner.constants import Constants
from megatron_core.planner.engine import MEGATRON_2021
from megatron_core.planner.hardware import hardware
from megatron_core.planner.step_time import StepModel, StepTime
from megatron_core.planner.workload import Recompute, Workload
from tests.planner.workloads import workload

GPT3 = ModelConfig(
    num_layers=96,
    hidden_size=12288,
    num_attention_heads=96,
    seq_length=2048,
    max_position_embeddings=2048,
    vocab_size=51200,
)
SELENE = hardware("dgx-a100-80")


def model(work: Workload) -> StepModel:
    return StepModel(work, SELENE, Constants())


def step(**more: object) -> StepTime:
    return model(workload(GPT3, **({"tp": 8, "pp": 8, "microbatches": 64} | more))).step()  # type: ignore[arg-type]


def test_the_parts_add_up_to_the_played_schedule_and_what_comes_after() -> None:
    played = model(workload(GPT3, tp=8, pp=8, microbatches=64))
    parts = played.step()
    assert parts.compute + parts.recompute + parts.tp + parts.p2p + parts.bubble == pytest.approx(
        played.timeline.makespan
    )
    assert parts.total == pytest.approx(played.timeline.makespan + parts.dp + parts.optimizer)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("waits", [True, False])
def test_the_quick_estimate_is_close_to_the_played_schedule(chunks: int, waits: bool) -> None:
    engine = dataclasses.replace(MEGATRON_2021, waits_for_p2p=waits)
    played = model(workload(GPT3, tp=8, pp=8, chunks=chunks, microbatches=32, engine=engine))
    assert played.quick_makespan == pytest.approx(played.timeline.makespan, rel=0.02)


@pytest.mark.parametrize("microbatches", [9, 12, 20, 28])
def test_it_is_near_where_groups_of_interleaving_are_not_full(microbatches: int) -> None:
    played = model(workload(GPT3, tp=8, pp=8, chunks=3, microbatches=microbatches))
    assert played.quick_makespan == pytest.approx(played.timeline.makespan, rel=0.06)


def test_zero_bubble_shrinks_the_bubble() -> None:
    plain, split = step(microbatches=16), step(microbatches=16, schedule="zero-bubble")
    assert split.bubble < 0.6 * plain.bubble


def test_interleaving_shrinks_the_bubble_by_its_chunks() -> None:
    assert step(chunks=3).bubble < 0.45 * step().bubble  # a third, and transfers that nothing hides


def test_full_recomputation_costs_about_a_forward_and_selective_little() -> None:
    none, selective, full = (step(recompute=Recompute(granularity=kind)) for kind in (None, "selective", "full"))
    assert 0.2 < full.recompute / none.compute < 0.45
    assert 0 < selective.recompute < 0.1 * none.compute


def test_recomputing_a_block_costs_its_layers() -> None:
    whole = step(recompute=Recompute(granularity="full")).recompute
    block = step(recompute=Recompute(granularity="full", method="block", num_layers=3)).recompute
    assert block == pytest.approx(whole * 3 / 12)


def test_sums_over_tp_hide_behind_weight_gradients_unless_these_are_put_off() -> None:
    plain, cut = step(), step(sequence_parallel=True)
    # Backward's sums are hidden; with the sequence cut only their second half, what is scattered.
    assert cut.tp == pytest.approx(1.5 * plain.tp)
    split, split_cut = step(schedule="zero-bubble"), step(schedule="zero-bubble", sequence_parallel=True)
    assert split.tp == pytest.approx(2 * plain.tp, rel=0.01)
    assert split_cut.tp == pytest.approx(2.5 * plain.tp, rel=0.01)  # inputs are gathered once more


def test_overlap_hides_the_reduction_but_for_what_it_takes_from_kernels() -> None:
    plain, hidden = (step(dp=16, overlap_grad_reduce=overlap) for overlap in (False, True))
    assert hidden.dp < plain.dp
    assert hidden.dp > 0.5 * Constants().overlap_cost * plain.dp


def test_zero_1_shares_the_update_out() -> None:
    plain, sharded = (step(dp=16, distributed_optimizer=sharded) for sharded in (False, True))
    assert sharded.optimizer < 0.3 * plain.optimizer


def test_a_host_updates_more_slowly() -> None:
    host = SELENE.host_adam_gparams_per_s * 1e9
    offloaded = step(optimizer_offload=True)
    # Eight devices share the processors of a node.
    assert offloaded.optimizer > 2.7e9 / (host / 8)


def test_hosts_of_unknown_speed_are_told() -> None:
    offloaded = StepModel(workload(GPT3, tp=8, pp=8, optimizer_offload=True), hardware("dgxa100-selene"), Constants())
    with pytest.raises(ConfigError, match="no host_adam_gparams_per_s"):
        offloaded.step()
