# SPDX-License-Identifier: Apache-2.0
"""Where a run starts, and that going on is the same as never having stopped (RES-05, RES-06, CKP-02, CKP-08)."""

import shutil
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.directory import prepare, step_directory
from megatron_core.checkpoint.held import held_tensors
from megatron_core.errors import CheckpointError, ConfigError
from megatron_core.optim.lr_schedule import Applied
from megatron_core.parallel.context import ParallelContext, single_process_context
from megatron_core.parallel.groups import create_context
from megatron_core.training.build import Run, build_run, initial_state, rewound
from megatron_core.training.mesh import grid_of, kv_replicas
from megatron_core.training.resume import Start, checkpoint_model_args, choose_start, load_start, roll_back
from megatron_core.training.run_data import open_data
from megatron_core.training.state import RunState
from megatron_core.training.train_step import train_step
from tests.checkpoint.saved_run import fill_with_numbers, save_run
from tests.e2e.proof import FAMILIES, config_of, start_rank
from tests.rank_pool import run_ranks

GPT2, DROPOUT = FAMILIES["gpt2"], FAMILIES["dropout"]
ALONE = single_process_context()
TP2_PP2 = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
Trace = list[tuple[float, float, float, float]]


def resumed(rank: int, world_size: int, flags: str) -> tuple[Run, RunState, Start]:
    """One rank, built and loaded as a run does it."""
    torch.set_num_threads(1)
    config = config_of(flags, world_size)
    ctx = create_context(grid_of(config, world_size), rank, torch.device("cpu"), kv_replicas=kv_replicas(config))
    start = choose_start(config, ctx)
    run = build_run(start.config, ctx, open_data(start.config), start.state)
    return run, load_start(start, run.reducer.buckets, run.optimizer, ctx), start


def steps(run: Run, state: RunState, count: int) -> tuple[RunState, Trace]:
    trace = []
    for _ in range(count):
        state, outcome = train_step(run, state)
        trace.append((outcome.loss, outcome.grad_norm, outcome.lr, outcome.loss_scale))
    return state, trace


def save_at(rank: int, world_size: int, flags: str, root: Path, at: tuple[int, ...], total: int) -> Trace:
    """Train `total` steps and save at some of them."""
    run, state = start_rank(rank, world_size, flags)
    trace: Trace = []
    for stop in sorted({*at, total}):
        state, more = steps(run, state, stop - state.step)
        trace += more
        if stop in at:
            save_run(run, state, root)
    return trace


def go_on(rank: int, world_size: int, flags: str, count: int) -> Trace:
    run, state, _ = resumed(rank, world_size, flags)
    return steps(run, state, count)[1]


COSINE = "--lr-decay-style cosine --lr-warmup-iters 2"


@pytest.mark.parametrize("more", [COSINE, f"{COSINE} --bf16", "--fp16 --initial-loss-scale 1e6 --loss-scale-window 3"])
def test_an_interrupted_run_is_the_straight_one_bit_by_bit(tmp_path: Path, more: str) -> None:
    flags = f"{DROPOUT} {TP2_PP2} {more}"
    straight = run_ranks(save_at, 4, flags, tmp_path, (3,), 6)[0]
    assert run_ranks(go_on, 4, f"{flags} --load {tmp_path}", 3)[0] == straight[3:]


@pytest.mark.parametrize("family", ["dropout", "llama"])
def test_an_interrupted_run_goes_on_in_another_layout(tmp_path: Path, family: str) -> None:
    """CKP-08 with it: a tied and an untied head."""
    flags = f"{FAMILIES[family]} --fp64 {COSINE}"
    straight = run_ranks(save_at, 4, f"{flags} {TP2_PP2}", tmp_path, (3,), 6)[0]
    for world_size, layout in [
        (1, ""),
        (2, "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"),
    ]:
        trace = run_ranks(go_on, world_size, f"{flags} {layout} --load {tmp_path}", 3)[0]
        assert torch.allclose(torch.tensor(trace), torch.tensor(straight[3:]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("precision", ["--bf16", "--fp16 --initial-loss-scale 1", ""])
@pytest.mark.parametrize("switch", ["--finetune", "--no-load-optim"])
def test_weights_alone_make_new_masters(tmp_path: Path, precision: str, switch: str) -> None:
    """RES-05: a step at a rate of 0 leaves the weights of the checkpoint, not those that the run was built with."""
    flags = f"{GPT2} {precision} --weight-decay 0"
    save_at(0, 1, flags, tmp_path, (2,), 2)
    run, state, start = resumed(0, 1, f"{flags} --lr-warmup-init 0 --lr-warmup-iters 5 --load {tmp_path} {switch}")
    saved = {tensor.name: tensor.values.clone() for tensor in weights(run)}
    assert start.chosen is not None and start.chosen.step == 2
    assert state == start.state and state.applied == Applied()
    assert state.loss_scale == initial_state(run.config).loss_scale
    assert (state.step, state.consumed_samples) == ((0, 0) if switch == "--finetune" else (2, 16))
    for bucket in run.optimizer.states:
        assert torch.equal(bucket.master.to(bucket.bucket.weights.dtype), bucket.bucket.weights)
    _, trace = steps(run, state, 1)
    assert trace[0][2] == 0.0
    assert all(torch.equal(saved[tensor.name], tensor.values) for tensor in weights(run))
    built, _ = start_rank(0, 1, flags)
    assert not all(torch.equal(saved[tensor.name], tensor.values) for tensor in weights(built))


def weights(run: Run):
    return held_tensors(run.reducer.buckets, run.optimizer, with_optim=False)


def choices(flags: str, ctx: ParallelContext = ALONE) -> Start:
    return choose_start(config_of(flags, ctx.world.size), ctx)


def test_nothing_to_load_is_a_new_run_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with caplog.at_level("INFO", "megatron_core"):
            start = choices(f"{GPT2} --load {folder}")
        assert start == Start(config=start.config, state=initial_state(start.config), chosen=None)
        assert f"--load {folder} holds no checkpoint: starting new" in caplog.text
        with pytest.raises(CheckpointError, match="no checkpoint, and --exit-on-missing-checkpoint is given"):
            choices(f"{GPT2} --load {folder} --exit-on-missing-checkpoint")
        with pytest.raises(CheckpointError, match=r"step_00000007 does not exist; usable steps in .*: none"):
            choices(f"{GPT2} --load {folder} --ckpt-step 7")
    assert choices(GPT2).chosen is None


def test_a_first_save_that_was_killed_can_start_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare(tmp_path, 10)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with caplog.at_level("INFO", "megatron_core"):
        assert choices(f"{GPT2} --load {tmp_path} --save {tmp_path}").chosen is None
    assert "passed over: " in caplog.text and "starting new" in caplog.text
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        choices(f"{GPT2} --load {tmp_path} --save {tmp_path / 'other'}")


def test_what_is_different_is_said_and_what_must_not_be_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_at(0, 1, f"{GPT2} --seed 7", tmp_path, (2,), 2)
    with caplog.at_level("INFO", "megatron_core"):
        run, state, start = resumed(0, 1, f"{GPT2} --load {tmp_path} --clip-grad 0.5")
    assert start.config.training.seed == run.config.training.seed == 7
    assert "seed: 7 as in the checkpoint, not 1234" in caplog.text
    assert "clip_grad: 1.0 in the checkpoint, 0.5 in this run" in caplog.text
    assert f"loaded weights, optimizer and state from {step_directory(tmp_path, 2)}" in caplog.text
    assert (state.step, state.consumed_samples, state.applied.samples) == (2, 16, 16)
    for more, message in [("--lr 1", "another schedule"), ("--num-layers 2", "another model")]:
        with pytest.raises(ConfigError, match=message):
            choices(f"{GPT2} --load {tmp_path} {more}")
    with pytest.raises(ConfigError, match="this run does not start from them"):
        choices(f"{GPT2} --save {tmp_path}")


def refused_everywhere(rank: int, world_size: int, flags: str) -> str:
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        resumed(rank, world_size, flags)
    return f"{type(caught.value).__name__} {caught.value}"


def test_every_rank_gets_the_same_refusal(tmp_path: Path) -> None:
    save_at(0, 1, GPT2, tmp_path, (2,), 2)
    for more, kind in [
        (f"--load {tmp_path} --ckpt-step 7", "CheckpointError"),
        (f"--load {tmp_path} --lr 1", "ConfigError"),
        (f"--save {tmp_path}", "ConfigError"),
        (f"--load {tmp_path / 'none'} --exit-on-missing-checkpoint", "CheckpointError"),
    ]:
        found = run_ranks(refused_everywhere, 2, f"{GPT2} {more}")
        assert found[0] == found[1] and found[0].startswith(kind)


def test_a_fall_back_brings_the_older_state(tmp_path: Path) -> None:
    save_at(0, 1, GPT2, tmp_path, (2, 4), 4)
    path = step_directory(tmp_path, 4) / "rank_00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    _, state, start = resumed(0, 1, f"{GPT2} --load {tmp_path}")
    assert start.state.step == 4 and state.step == 2 and state.consumed_samples == 16


def test_a_run_goes_back_to_what_it_saved_last(tmp_path: Path) -> None:
    """At first to what it started from; then the same steps are taken again."""
    base, own = tmp_path / "base", tmp_path / "own"
    save_at(0, 1, GPT2, base, (2,), 2)
    run, state, start = resumed(0, 1, f"{GPT2} --load {base} --save {own}")
    state, first = steps(run, state, 1)
    saved_at_3 = state
    save_run(run, state, own)
    _, second = steps(run, state, 1)
    for root, expected in [(own, second), (None, first)]:
        if root is None:
            shutil.rmtree(own)
        fill_with_numbers(run)
        state = roll_back(start, run.reducer.buckets, run.optimizer, ALONE)
        assert state == (saved_at_3 if root else start.state)
        assert steps(rewound(run, state), state, 1)[1] == expected


@pytest.mark.parametrize("switch", ["--finetune", "--no-load-optim"])
def test_the_way_back_takes_as_much_as_there_is_to_take(tmp_path: Path, switch: str) -> None:
    """All of what the run saved itself, and of what it started from no more than at the start."""
    base, own = tmp_path / "base", tmp_path / "own"
    save_at(0, 1, f"{GPT2} --bf16", base, (2,), 2)
    run, state, start = resumed(0, 1, f"{GPT2} --bf16 --load {base} --save {own} {switch}")
    state, first = steps(run, state, 3)
    moments = [bucket.moments for bucket in run.optimizer.states]
    again = roll_back(start, run.reducer.buckets, run.optimizer, ALONE)
    assert again == start.state and not any(part.any() for pair in moments for part in (pair.m, pair.v))
    run = rewound(run, again)
    assert steps(run, again, 3)[1] == first
    save_run(run, state, own)
    fill_with_numbers(run)
    assert roll_back(start, run.reducer.buckets, run.optimizer, ALONE) == state
    assert all(part.any() for pair in moments for part in (pair.m, pair.v))


def test_a_run_without_any_checkpoint_cannot_go_back(tmp_path: Path) -> None:
    run, _, start = resumed(0, 1, f"{GPT2} --save {tmp_path}")
    with pytest.raises(CheckpointError, match=f"nothing to roll back to: {tmp_path} holds no checkpoint yet"):
        roll_back(start, run.reducer.buckets, run.optimizer, ALONE)


def test_the_model_of_a_checkpoint(tmp_path: Path) -> None:
    assert checkpoint_model_args(str(tmp_path), None) == {}
    save_at(0, 1, FAMILIES["llama"], tmp_path, (2,), 2)
    for step in (None, 2):
        found = checkpoint_model_args(str(tmp_path), step)
        assert (found["num_layers"], found["swiglu"], found["ffn_hidden_size"], found["vocab_size"]) == (
            4,
            True,
            48,
            61,
        )
    with pytest.raises(CheckpointError, match=r"step_00000007 does not exist; usable steps in .*: 2$"):
        checkpoint_model_args(str(tmp_path), 7)
