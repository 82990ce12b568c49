# SPDX-License-Identifier: Apache-2.0
"""1-bit Adam in whole runs: its numbers depend on dp alone, its bytes are a fourteenth, and it ends like AdamW."""

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from megatron_core.data.indexed_writer import IndexedWriter
from megatron_core.errors import ConfigError
from megatron_core.model.gpt import EMBEDDING_NAME
from megatron_core.optim.grad_clip import sum_of_squares
from megatron_core.optim.onebit_adam import OneBitAdam
from megatron_core.training.build import Run
from megatron_core.training.train_step import train_step
from tests.e2e.proof import FAMILIES, NO_DROPOUT, Curve, assert_equal, run_whole, start_rank, train_rank, whole_weights
from tests.e2e.run_folder import assert_same_end, curve
from tests.rank_pool import run_ranks, session_pool
from tests.wire_bytes import counted_bytes

ROOT = Path(__file__).parents[2]
FREEZE = 4
ONEBIT = f"--optimizer onebit-adam --onebit-freeze-step {FREEZE} --weight-decay 0.1"
TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
LAYOUTS = {
    "tp2-sp": (4, f"{TP2} --sequence-parallel"),
    "pp2-zero-bubble-one-bucket": (4, f"{PP2} --pipeline-schedule zero-bubble --ddp-bucket-size 1000000"),
    "tp2-pp2-interleaved": (8, f"{TP2} {PP2} --num-virtual-stages-per-pipeline-rank 2"),
}


@functools.cache
def two_replicas(flags: str) -> Curve:
    found: Curve = run_ranks(train_rank, 2, flags, 10)[0]
    return found


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("llama", "tp2-sp"),
        ("gpt2", "pp2-zero-bubble-one-bucket"),
        ("gpt2", "tp2-pp2-interleaved"),
        pytest.param("gpt2", "tp2-sp", marks=pytest.mark.slow),
        pytest.param("llama", "pp2-zero-bubble-one-bucket", marks=pytest.mark.slow),
        pytest.param("llama", "tp2-pp2-interleaved", marks=pytest.mark.slow),
    ],
)
def test_numbers_depend_on_dp_alone(family: str, layout: str) -> None:
    world_size, more = LAYOUTS[layout]
    flags = f"{FAMILIES[family]} --global-batch-size 4 --fp64 {ONEBIT}"
    assert_equal(run_ranks(train_rank, world_size, f"{flags} {more}", 10)[0], two_replicas(flags))


def test_compression_shows_after_the_freeze_and_not_before() -> None:
    flags = f"{FAMILIES['gpt2']} --global-batch-size 4 --fp64"
    onebit, adam = two_replicas(f"{flags} {ONEBIT}"), two_replicas(f"{flags} --weight-decay 0.1")
    # The loss of step FREEZE + 1 still is that of the weights which FREEZE updates of AdamW have made.
    assert onebit.losses[: FREEZE + 1] == adam.losses[: FREEZE + 1]
    assert onebit.norms[:FREEZE] == adam.norms[:FREEZE]
    assert onebit.losses[FREEZE + 1] != adam.losses[FREEZE + 1]


def sent_bytes(rank: int, world_size: int, flags: str) -> tuple[list[float], int]:
    """Bytes sent by this rank in each of FREEZE + 2 steps, and the number of its parameters."""
    run, state = start_rank(rank, world_size, flags)
    sent = []
    for _ in range(FREEZE + 2):
        with counted_bytes() as count:
            state, _ = train_step(run, state)
        sent.append(count.sent)
    return sent, sum(parameter.numel() for parameter in run.reducer.parameters)


@pytest.mark.parametrize("world_size", [2, 4])
def test_bytes_on_the_wire(world_size: int) -> None:
    flags = f"{FAMILIES['gpt2']} --hidden-size 128 --global-batch-size 4 --num-layers 2 {ONEBIT}"
    for sent, parameters in run_ranks(sent_bytes, world_size, flags):
        half_precision = 2 * (world_size - 1) / world_size * 2 * parameters
        assert sent[FREEZE - 1] >= 2 * half_precision  # fp32 gradients
        for compressed in sent[FREEZE:]:
            assert half_precision / 17 < compressed <= half_precision / 14


def _snapshot(run: Run) -> list[torch.Tensor]:
    assert isinstance(run.optimizer, OneBitAdam)
    kept = [t for s in run.optimizer.states for t in (s.bucket.owned_weights, s.master, s.moments.m, s.moments.v)]
    return [tensor.clone() for tensor in [*kept, *(t for e in run.optimizer.errors for t in (e.worker, e.server))]]


def after_finish(run: Run, what: Callable[[], None]) -> AbstractContextManager[object]:
    """Has every step do `what` between reduction and norm."""
    finish = run.reducer.finish

    def call() -> None:
        finish()
        what()

    return mock.patch.object(run.reducer, "finish", call)


def overflow_on_one_rank(rank: int, world_size: int, flags: str) -> list[tuple[bool, float, bool]]:
    """Of each compressed step: whether it was skipped, its loss scale, whether any state changed."""
    run, state = start_rank(rank, world_size, flags)
    seen = []
    for step in range(FREEZE + 4):
        before = _snapshot(run)
        value = math.inf if step == FREEZE + 2 and rank == world_size - 1 else 0.0
        with after_finish(run, lambda value=value: run.reducer.buckets[0].grads[:1].add_(value)):
            state, outcome = train_step(run, state)
        changed = not all(map(torch.equal, before, _snapshot(run)))
        if step >= FREEZE:
            seen.append((outcome.skipped, outcome.loss_scale, changed))
    return seen


def test_an_overflow_on_one_rank_touches_no_state_on_any() -> None:
    flags = f"{FAMILIES['gpt2']} --num-layers 1 --fp16 --initial-loss-scale 64 --hysteresis 1 {ONEBIT}"
    for seen in run_ranks(overflow_on_one_rank, 2, flags):
        assert seen == [(False, 64.0, True), (False, 64.0, True), (True, 64.0, False), (False, 32.0, True)]


def clipped_steps(rank: int, world_size: int, flags: str) -> tuple[list[float], list[float], list[torch.Tensor]]:
    """Of compressed steps, this rank's norm of what it takes for the batch's gradient and the norm told; weights."""
    run, state = start_rank(rank, world_size, flags)
    own: list[float] = []
    told = []

    def measure() -> None:
        own.append(math.sqrt(sum_of_squares([bucket.grads for bucket in run.reducer.buckets])) * world_size)

    with after_finish(run, measure):
        for _ in range(FREEZE + 3):
            state, outcome = train_step(run, state)
            told.append(outcome.grad_norm)
    return own[FREEZE:], told[FREEZE:], [bucket.weights for bucket in run.reducer.buckets]


def test_clipping_is_by_one_norm_on_all_ranks() -> None:
    flags = f"{FAMILIES['gpt2']} --num-layers 1 --clip-grad 0.01 --fp64 {ONEBIT}"
    results = run_ranks(clipped_steps, 2, flags)
    norms, told, weights = zip(*results)
    assert told[0] == told[1]
    for first, second, one in zip(*norms, told[0]):
        assert first != second
        assert one == pytest.approx(math.sqrt((first**2 + second**2) / 2), rel=1e-12)
    assert all(map(torch.equal, *weights))


def weights_and_momenta(rank: int, world_size: int, flags: str) -> tuple[int, list[torch.Tensor], list[torch.Tensor]]:
    """After three compressed steps: this rank's stage, the tied table's weights and momentum, and all others'."""
    run, state = start_rank(rank, world_size, flags)
    for _ in range(FREEZE + 3):
        state, _ = train_step(run, state)
    kept: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for one in run.optimizer.states:
        kept[not one.bucket.kind.tied].extend((one.master, one.moments.m))
    return run.ctx.pp.coordinate, *kept


def test_replicas_and_the_ends_of_a_tied_table_stay_equal_to_the_bit_and_stages_keep_their_own() -> None:
    flags = f"{FAMILIES['gpt2']} --num-layers 2 --global-batch-size 4 --bf16 {PP2} {ONEBIT}"
    results = run_ranks(weights_and_momenta, 4, flags)
    _, tied, _ = results[0]
    assert len(tied) == 2 and all(all(map(torch.equal, tied, other)) for _, other, _ in results)
    (first, twin), (last, last_twin) = ([rest for stage, _, rest in results if stage == number] for number in range(2))
    assert all(map(torch.equal, first, twin)) and all(map(torch.equal, last, last_twin))
    assert not torch.equal(torch.cat(first), torch.cat(last))


@pytest.mark.parametrize("more", [TP2, f"{PP2} --bf16"], ids=["tp2", "pp2-bf16"])
def test_an_interrupted_run_is_the_straight_one_to_the_bit(more: str, tmp_path: Path) -> None:
    flags = f"{FAMILIES['dropout']} --num-layers 2 --global-batch-size 4 {ONEBIT} {more}"
    straight, second = tmp_path / "straight", tmp_path / "second"
    run_whole(4, f"{flags} --save {straight} --save-interval 3")
    for step in (3, 6):  # before the freeze, and after
        run_whole(4, f"{flags} --load {straight} --ckpt-step {step} --save {second}{step}")
        resumed = Path(f"{second}{step}")
        assert curve(resumed) == {at: line for at, line in curve(straight).items() if at > step}
        assert_same_end(resumed, straight, 10)


def test_errors_go_with_dp_and_not_with_the_layout(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = f"{FAMILIES['gpt2']} --num-layers 2 --global-batch-size 4 --fp64 {ONEBIT}"
    saved = f"--load {tmp_path} --ckpt-step 6"
    run_whole(4, f"{flags} {TP2} --save {tmp_path} --save-interval 6")
    expected = two_replicas(flags)
    for world_size, more in ((2, ""), (4, PP2)):
        resumed: Curve = run_ranks(train_rank, world_size, f"{flags} {more} {saved}", 4)[0]
        assert_equal(resumed, Curve(expected.losses[6:], expected.norms[6:], expected.weights))
    other: Curve = run_ranks(train_rank, 4, f"{flags} {saved}", 4)[0]  # dp 4
    assert other.losses[0] == pytest.approx(expected.losses[6], rel=1e-10)
    assert all(map(math.isfinite, other.losses))


def test_the_freeze_cannot_be_moved_once_it_has_passed(tmp_path: Path) -> None:
    flags = f"{FAMILIES['gpt2']} --num-layers 1 --weight-decay 0.1"
    run_whole(1, f"{flags} --save {tmp_path} --save-interval 3")
    onebit = "--optimizer onebit-adam --onebit-freeze-step"
    with pytest.raises(ConfigError, match="was trained by AdamW, this run by 1-bit Adam frozen at 5"):
        start_rank(0, 1, f"{flags} --load {tmp_path} {onebit} 5")
    start_rank(0, 1, f"{flags} --load {tmp_path} --ckpt-step 3 {onebit} 5")
    start_rank(0, 1, f"{flags} --load {tmp_path} {onebit} 5 --no-load-optim")


def _text(folder: Path) -> str:
    """Flags of the shipped text as a data set of bytes."""
    prefix = folder / "text"
    if not prefix.with_suffix(".idx").exists():
        text = np.frombuffer((ROOT / "data" / "tinyshakespeare.txt").read_bytes(), dtype=np.uint8)
        with IndexedWriter(str(prefix), np.dtype(np.uint16)) as writer:
            writer.add_document(text.astype(np.uint16))
    return f"--data-path {prefix} --split 100,0,0 --tokenizer-type NullTokenizer --vocab-size 255"


def _losses(flags: str, steps: int) -> list[float]:
    found: Curve = session_pool().call(train_rank, 2, (flags, steps), timeout=1800)[0]
    return found.losses


TEXT_MODEL = (
    f"{NO_DROPOUT} --num-layers 2 --seq-length 32 --max-position-embeddings 32 --global-batch-size 4 "
    "--micro-batch-size 2 --lr 1e-2 --lr-warmup-iters 10 --adam-beta2 0.95"
)


def test_it_learns_as_adamw_does(tmp_path: Path) -> None:
    flags = f"{_text(tmp_path)} {TEXT_MODEL} --train-iters 60"
    adam = _losses(flags, 60)
    onebit = _losses(f"{flags} --optimizer onebit-adam --onebit-freeze-step 15", 60)
    assert onebit != adam
    last = slice(-20, None)  # single batches differ by more than the optimizers
    assert sum(adam[last]) < 0.8 * 20 * adam[0]
    assert sum(onebit[last]) <= 1.01 * sum(adam[last])


DEMO = (
    "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 "
    "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --qk-layernorm "
    f"{NO_DROPOUT} --micro-batch-size 4 --global-batch-size 16 --lr 4e-3 --min-lr 2e-4 --lr-decay-style cosine "
    "--lr-warmup-iters 20 --adam-beta2 0.99 --weight-decay 0.1 --train-iters 400 --ddp-bucket-size 1000000"
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_demo_ends_as_with_adamw(tmp_path: Path) -> None:
    """400 steps of configs/demo_cpu.yaml's model at dp 2, of which a quarter are the warm-up."""
    flags = f"{_text(tmp_path)} {DEMO}"
    adam = _losses(flags, 400)
    onebit = _losses(f"{flags} --optimizer onebit-adam --onebit-freeze-step 100", 400)
    last = slice(-40, None)
    print(f"last 40 losses: AdamW {sum(adam[last]) / 40:.4f}, 1-bit Adam {sum(onebit[last]) / 40:.4f}")
    assert sum(onebit[last]) <= 1.01 * sum(adam[last])


def test_rows_of_ids_never_seen_only_decay(tmp_path: Path) -> None:
    """A vocabulary of 60 of which 6 never come, 200 compressed steps, embedding and head untied."""
    never = np.arange(5, 60, 10)
    seen = np.setdiff1d(np.arange(60), never)
    with IndexedWriter(str(tmp_path / "ids"), np.dtype(np.uint16)) as writer:
        writer.add_document(np.random.default_rng(1).choice(seen, 5000).astype(np.uint16))
    steps = 40 + 200
    flags = (
        f"--data-path {tmp_path}/ids --split 100,0,0 --tokenizer-type NullTokenizer --vocab-size 59 {NO_DROPOUT} "
        "--untie-embeddings-and-output-weights --num-layers 1 --global-batch-size 2 --weight-decay 0.1 "
        f"--train-iters {steps} --optimizer onebit-adam --onebit-freeze-step 40"
    )
    run, state = start_rank(0, 1, flags)
    start = whole_weights(run)
    for _ in range(steps):
        state, _ = train_step(run, state)
    end = whole_weights(run)
    assert start is not None and end is not None
    start, end = start[EMBEDDING_NAME].numpy(), end[EMBEDDING_NAME].numpy()
    decayed = start * (1 - 1e-3 * 0.1) ** steps
    np.testing.assert_allclose(end[never], decayed[never], rtol=1e-4)
    assert np.abs(end - decayed)[seen].max(axis=1).min() > 1e-3
