# SPDX-License-Identifier: Apache-2.0
"""The formula against dry runs of the real code: 26 layouts that have every feature between them, within 2 %."""

import pytest
import torch

from megatron_core.config.cli import parse
from megatron_core.config.run import RunConfig
from megatron_core.parallel.groups import create_context
from megatron_core.planner.hardware import DIRECTORY, known_device
from megatron_core.planner.stage_memory import stage_memory
from megatron_core.planner.workload import Workload
from megatron_core.training.build import build_run, initial_state
from megatron_core.training.dry_run import dry_run, model_parameters
from megatron_core.training.live_bytes import counted
from megatron_core.training.mesh import grid_of, kv_replicas
from megatron_core.training.run_data import open_data
from megatron_core.training.train_step import train_step
from tests.planner.test_step_time import GPT3
from tests.planner.workloads import workload
from tests.rank_pool import run_ranks

MODEL = (
    "--num-layers 2 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 "
    "--hidden-dropout 0 --attention-dropout 0 --make-vocab-size-divisible-by 1 --mock-data --vocab-size 500 "
    "--micro-batch-size 2 --global-batch-size 4 --train-iters 10 --lr 1e-3 --ddp-bucket-size 300000"
)
LLAMA = (
    "--normalization RMSNorm --swiglu --position-embedding-type rope --untie-embeddings-and-output-weights "
    "--disable-bias-linear --group-query-attention --num-query-groups 4 --ffn-hidden-size 704"
)
FULL, SELECTIVE = "--recompute-granularity full", "--recompute-granularity selective"
SP = "--tensor-model-parallel-size 2 --sequence-parallel"
PP2, PP4 = "--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 4 --num-layers 4 --global-batch-size 12"
LAYOUTS = {
    "bf16": (1, 0, "--bf16"),
    "fp32": (1, 0, ""),
    "full": (1, 0, f"--bf16 {FULL}"),
    "full-groups": (1, 0, f"--bf16 {FULL} --recompute-num-layers 2"),
    "full-block": (1, 0, f"--bf16 {FULL} --recompute-method block --recompute-num-layers 2 --num-layers 3"),
    "tp2": (2, 0, "--bf16 --tensor-model-parallel-size 2"),
    "sequence-parallel": (2, 0, f"--bf16 {SP}"),
    "selective": (2, 0, f"--bf16 {SP} {SELECTIVE} --recompute-modules mlp layernorm"),
    "dropout": (1, 0, "--fp16 --hidden-dropout 0.1 --attention-dropout 0.1"),
    "dropout-selective": (1, 0, f"--bf16 --hidden-dropout 0.1 --attention-dropout 0.1 {SELECTIVE}"),
    "llama": (4, 0, f"--bf16 {LLAMA} --tensor-model-parallel-size 4 --sequence-parallel"),
    "qk-norm": (
        1,
        0,
        "--bf16 --qk-layernorm --group-query-attention --num-query-groups 1 --position-embedding-type rope",
    ),
    "parallel-residual": (1, 0, "--bf16 --use-parallel-residual --squared-relu"),
    "documents": (1, 0, "--bf16 --reset-attention-mask --reset-position-ids"),
    "1f1b": (4, 1, f"--bf16 {PP4}"),
    "embedding-norm": (2, 0, f"--bf16 --embed-layernorm {PP2}"),
    "interleaved": (2, 1, f"--bf16 {PP2} --num-layers-per-virtual-pipeline-stage 1 --num-layers 4"),
    "gpipe": (4, 0, f"--bf16 {PP4} --pipeline-schedule gpipe {FULL}"),
    "zero-bubble": (4, 3, f"--bf16 {PP4} --pipeline-schedule zero-bubble"),
    "zero-bubble-recomputed": (8, 2, f"--bf16 {PP4} --pipeline-schedule zero-bubble {SP} {FULL}"),
    "large-vocabulary": (4, 1, f"--bf16 {SP} {PP2} --vocab-size 20000"),
    "zero1-bf16-gradients": (2, 0, "--bf16 --use-distributed-optimizer --grad-reduce-in-bf16"),
    "host-optimizer": (2, 0, f"--bf16 --optimizer-cpu-offload {PP2} --use-distributed-optimizer"),
    "host-gradients": (1, 0, f"--bf16 --optimizer-cpu-offload {LLAMA}"),
    "host-activations": (1, 0, "--bf16 --num-layers 4 --cpu-offloading-num-layers 3 --min-offloaded-tensor-size 1024"),
    "host-inputs": (
        2,
        1,
        f"--bf16 {FULL} --cpu-offloading-num-layers 3 --min-offloaded-tensor-size 1024 --num-layers 8 {PP2}",
    ),
}
"""World size, stage, and flags."""

NLG = (
    "--num-layers 105 --hidden-size 20480 --num-attention-heads 128 --seq-length 2048 --max-position-embeddings 2048 "
    "--hidden-dropout 0 --attention-dropout 0 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 35 "
    "--train-iters 10 --lr 1e-4 --mock-data --vocab-size 50257 --micro-batch-size 1 --global-batch-size 2 --bf16"
)


def config_of(flags: str, world_size: int) -> RunConfig:
    return parse(flags.split(), world_size).config


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_formula_has_the_live_bytes_of_a_dry_run(layout: str) -> None:
    world_size, stage, flags = LAYOUTS[layout]
    config = config_of(f"{MODEL} {flags}", world_size)
    found = dry_run(config, world_size, grid_of(config, world_size).rank(pp=stage)).live_bytes
    memory = stage_memory(Workload.of(config, world_size), stage)
    assert memory.live == pytest.approx(found["total"], rel=0.02)
    assert memory.weights == pytest.approx(found["parameters"], rel=0.001)
    assert memory.gradients == pytest.approx(found["gradients"], rel=0.02)
    assert memory.optimizer == pytest.approx(found["optimizer"], rel=0.001)
    assert memory.activations + memory.buffers == pytest.approx(found["activations"] + found["temporary"], rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [FULL, f"{SELECTIVE} --sequence-parallel --use-distributed-optimizer"])
def test_a_large_model_s_too(flags: str) -> None:
    config = config_of(f"{NLG} {flags}", 280)
    found = dry_run(config, 280, 34 * 8).live_bytes
    assert stage_memory(Workload.of(config, 280), 34).live == pytest.approx(found["total"], rel=0.02)


def claimed(name: str, world_size: int, more: str = "") -> RunConfig:
    """A configuration of a claim of the project's."""
    return config_of(f"--config {DIRECTORY.parent}/{name}.yaml {more}", world_size)


def test_13_billion_parameters_fit_on_one_v100_with_offload_alone() -> None:
    room = known_device("V100-SXM2-32GB").memory_gb * 1e9
    with_offload, without = (
        stage_memory(Workload.of(claimed("gpt_13b_offload_v100", 1, more), 1), 0)
        for more in ("", "--no-optimizer-cpu-offload")
    )
    assert with_offload.weights > 2 * 12.8e9
    assert with_offload.total < room < without.total / 6


@pytest.mark.slow
def test_13_billion_parameters_take_what_the_formula_says() -> None:
    config = claimed("gpt_13b_offload_v100", 1)
    found = dry_run(config, 1, 0, most=1)
    assert stage_memory(Workload.of(config, 1), 0).live == pytest.approx(found.live_bytes["total"], rel=0.02)
    assert found.parameters > 12.8e9 and found.live_bytes["optimizer"] == 0


@pytest.mark.parametrize("stage", [0, 1, 49])
def test_a_trillion_parameters_fit_on_800_v100(stage: int) -> None:
    room = known_device("V100-SXM3-32GB").memory_gb * 1e9
    config = claimed("gpt_1t_v100", 800)
    workload = Workload.of(config, 800)
    assert workload.microbatches == 2048
    assert stage_memory(workload.replace(microbatches=120), stage).total < room
    found = dry_run(config, 800, stage * 16, most=1).live_bytes
    assert stage_memory(workload.replace(microbatches=1), stage).live == pytest.approx(found["total"], rel=0.02)


def test_all_of_mt_nlg_s_parameters_are_counted_once() -> None:
    config = claimed("mt_nlg_530b", 2240)
    assert model_parameters(config, 50257) == 529_581_506_560
    assert max(stage_memory(Workload.of(config, 2240), stage).total for stage in (0, 1, 34)) < 40e9


DEMO = (
    "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 "
    "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --qk-layernorm "
    "--hidden-dropout 0 --attention-dropout 0 --make-vocab-size-divisible-by 8 --mock-data --vocab-size 257 --lr 4e-3 "
    "--micro-batch-size 4 --global-batch-size 16 --train-iters 10 --eval-iters 0 --num-workers 0"
)
"""configs/demo_cpu.yaml's model."""


def counted_step(rank: int, world_size: int, flags: str) -> int:
    """Live bytes at the peak of one real rank's step on a CPU."""
    torch.set_num_threads(1)
    config = config_of(flags, world_size)
    grid = grid_of(config, world_size)
    ctx = create_context(grid, rank, torch.device("cpu"), kv_replicas=kv_replicas(config))
    run = build_run(config, ctx, open_data(config), initial_state(config))
    with counted(run) as live:
        train_step(run, initial_state(config))
    run.source.close()
    return live.peaks()["total"]


@pytest.mark.parametrize(
    ("world_size", "flags"),
    [
        (1, ""),
        (2, f"{PP2} --recompute-granularity full"),
        (2, f"{PP2} --num-layers-per-virtual-pipeline-stage 1"),
        (4, "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"),
        (4, "--pipeline-model-parallel-size 4 --pipeline-schedule zero-bubble"),
    ],
)
def test_on_a_cpu_it_has_those_of_real_ranks_within_3_per_cent(world_size: int, flags: str) -> None:
    """Other than a GPU, it has no fused RMSNorm, and gloo keeps what was sent until something comes back."""
    workload = Workload.of(config_of(f"{DEMO} {flags}", world_size), world_size)
    for rank, measured in enumerate(run_ranks(counted_step, world_size, f"{DEMO} {flags}")):
        memory = stage_memory(workload, rank * workload.pp // world_size, on_cpu=True)
        assert memory.live == pytest.approx(measured, rel=0.03)
        assert memory.allowance == 0


@pytest.mark.parametrize("microbatches", [8, 9, 13, 24])
@pytest.mark.parametrize(
    "schedule, chunks", [("1f1b", 1), ("zero-bubble", 1), ("interleaved", 2), ("interleaved", 3), ("gpipe", 1)]
)
def test_a_walk_that_is_cut_short_sees_all_that_there_is(
    schedule: str, chunks: int, microbatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = workload(GPT3, tp=8, pp=4, chunks=chunks, schedule=schedule, microbatches=microbatches)
    short = [stage_memory(step, stage) for stage in range(4)]
    monkeypatch.setattr("megatron_core.planner.stage_memory._walked", lambda work: work.microbatches)
    assert short == [stage_memory(step, stage) for stage in range(4)]
