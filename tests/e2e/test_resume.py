# SPDX-License-Identifier: Apache-2.0
"""A run that was interrupted is the run that was not: every column, tensor and scalar, to the bit, in the same layout.

Whole runs as the command line makes them; the straight one saves on its way, behind training, and the other one goes on
from there.
"""

from pathlib import Path
from typing import Any

import pytest

from megatron_core.checkpoint.directory import read_manifest
from megatron_core.training.metrics import METRICS_FILE, read_metrics
from megatron_core.training.run_data import open_data
from megatron_core.training.train_step import train_step
from tests.e2e.proof import FAMILIES, NO_DROPOUT, config_of, corpus, run_whole, start_rank
from tests.e2e.run_folder import assert_same_end, columns, curve, validation_losses
from tests.rank_pool import run_ranks

DROPOUT = f"{FAMILIES['dropout']} --num-layers 2 --micro-batch-size 2 --global-batch-size 4"
TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
ZERO = "--use-distributed-optimizer --overlap-param-gather --ddp-bucket-size 3000"
LAYOUTS = {"alone": (1, ""), "tp2": (2, TP2), "pp2": (2, PP2), "dp2": (2, ""), "dp2-zero": (2, ZERO)}


def straight_and_resumed(
    folder: Path, layout: str, flags: str, *, at: int, steps: int, resumed: str = ""
) -> tuple[Path, Path]:
    """Folders of a run to `steps`, and of one that loads what the first has saved after `at`; both are compared.

    `resumed`: flags that only the second run gets.
    """
    straight, second = folder / "straight", folder / "resumed"
    world_size, more = LAYOUTS[layout]
    run_whole(world_size, f"{flags} {more} --save {straight} --save-interval {at}")
    run_whole(world_size, f"{flags} {more} --load {straight} --ckpt-step {at} --save {second} {resumed}")
    expected = curve(straight)
    assert list(expected) == list(range(1, steps + 1))
    assert curve(second) == {step: line for step, line in expected.items() if step > at}
    assert_same_end(second, straight, steps)
    return straight, second


@pytest.mark.parametrize("precision", ["", "--bf16"], ids=["fp32", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ten_steps_are_five_and_five(layout: str, precision: str, tmp_path: Path) -> None:
    """RES-06: dropout on, masters and moments too."""
    straight_and_resumed(tmp_path, layout, f"{DROPOUT} {precision}", at=5, steps=10)


def test_an_interruption_is_an_end_and_a_start(tmp_path: Path) -> None:
    """RES-06: as a user interrupts, twice, in one directory; each run appends to the same metrics."""
    straight, folder = tmp_path / "straight", tmp_path / "interrupted"
    run_whole(2, f"{DROPOUT} {TP2} --save {straight}")
    for end in ("--exit-interval 4", "--exit-interval 7 --no-async-save", ""):
        run_whole(2, f"{DROPOUT} {TP2} --load {folder} --save {folder} {end}")
    assert columns(folder, "loss", "grad_norm") == columns(straight, "loss", "grad_norm")
    assert len(read_metrics(folder / METRICS_FILE)) == 10
    assert_same_end(folder, straight, 10)


@pytest.mark.parametrize("layout", ["dp2", "pp2"])
def test_a_batch_that_grows(layout: str, tmp_path: Path) -> None:
    """Interrupted within the ramp: 4 to 16 samples in steps of 4 over 24; the schedule counts samples."""
    flags = (
        f"{DROPOUT} --train-samples 104 --rampup-batch-size 4 4 24 --global-batch-size 16 --lr-decay-style cosine "
        "--lr-warmup-samples 20"
    )
    straight, _ = straight_and_resumed(tmp_path, layout, flags, at=3, steps=8)
    sizes = [size for (size,) in columns(straight, "batch_size").values()]
    assert sizes[2] < sizes[3] < sizes[-1] == 16


def test_the_loss_scale_and_its_counters(tmp_path: Path) -> None:
    """FPX-03: saved at 7 between an overflow and the next growth; the columns of 8 to 14 move at the same steps."""
    flags = f"{DROPOUT} --fp16 --initial-loss-scale 8388608 --loss-scale-window 5 --train-iters 14"
    straight, second = straight_and_resumed(tmp_path, "dp2", flags, at=7, steps=14)
    saved = read_manifest(straight, 7).state["loss_scale"]
    assert 0 < saved["clean_steps"] < 5 and saved["hysteresis_left"] < 2, "the save must fall between two changes"
    scales = columns(second, "loss_scale", "skipped")
    assert list(scales) == list(range(8, 15)) and len(set(scales.values())) > 1, "the scale must move again"


@pytest.mark.parametrize("at", [4, 17])
def test_steps_that_overflowed_are_not_counted_after_a_restart(at: int, tmp_path: Path) -> None:
    """FPX-04: interrupted among the overflows at the start, and after them while the rate still rises."""
    flags = f"{DROPOUT} --fp16 --initial-loss-scale 4294967296 --hysteresis 1 --lr-warmup-iters 10 --train-iters 20"
    straight, _ = straight_and_resumed(tmp_path, "alone", flags, at=at, steps=20)
    state = read_manifest(straight, at).state
    skips = sum(skipped for step, (skipped,) in columns(straight, "skipped").items() if step <= at)
    assert 0 < skips <= at and (state["step"], state["applied_steps"]) == (at, at - skips)
    assert state["consumed_samples"] == 4 * at


@pytest.mark.parametrize("length", ["--train-iters 20", "--train-samples 80"])
def test_a_cosine_goes_on_where_it_was(length: str, tmp_path: Path) -> None:
    """RES-02: after 10, 11 and 12 of 20 steps from 1e-3 to 1e-4."""
    flags = f"{DROPOUT} {length} --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine"
    _, second = straight_and_resumed(tmp_path, "alone", flags, at=10, steps=20)
    rates = [rate for (rate,) in columns(second, "lr").values()]
    assert rates[:3] == pytest.approx([5.5e-4, 4.796e-4, 4.109e-4], abs=5e-8)


def test_another_seed_on_the_command_line_changes_nothing(tmp_path: Path) -> None:
    """Order of data and dropout masks go on as they were, but for --no-load-rng."""
    straight, _ = straight_and_resumed(tmp_path, "tp2", DROPOUT, at=5, steps=10, resumed="--seed 5")
    other = tmp_path / "other"
    run_whole(1, f"{DROPOUT} --load {straight} --ckpt-step 5 --save {other} --seed 5 --no-load-rng --exit-interval 6")
    assert abs(curve(other)[6][0] - curve(straight)[6][0]) > 1e-4


def test_steps_that_are_passed_over(tmp_path: Path) -> None:
    """--iterations-to-skip on both sides of the interruption."""
    flags = f"{DROPOUT} --iterations-to-skip 3 7-8"
    straight, second = tmp_path / "straight", tmp_path / "resumed"
    run_whole(2, f"{flags} {PP2} --save {straight} --save-interval 5")
    run_whole(2, f"{flags} {PP2} --save {second} --load {straight} --ckpt-step 5")
    moved = curve(straight)
    assert list(moved) == [1, 2, 4, 5, 6, 9, 10]
    assert curve(second) == {step: moved[step] for step in (6, 9, 10)}
    assert_same_end(second, straight, 10)
    assert read_manifest(second, 10).state["consumed_samples"] == 40


Rows = dict[int, list[int]]
"""Tokens by sample number."""


def batches(rank: int, world_size: int, flags: str, steps: int) -> list[Rows]:
    """What this rank was given in each of the next steps."""
    run, state = start_rank(rank, world_size, flags)
    given: list[Rows] = []
    give = run.source.step

    def recording(plan: tuple[tuple[int, ...], ...], dropout: tuple[int, int] | None) -> Any:
        microbatches = give(plan, dropout)
        rows = [row for microbatch in microbatches for row in microbatch.tokens.tolist()]
        given.append(dict(zip(sum(plan, ()), rows, strict=True)))
        return microbatches

    run.source.step = recording  # type: ignore[method-assign]
    for _ in range(steps):
        state, _ = train_step(run, state)
    run.source.close()
    return given


def test_no_sample_twice_and_none_left_out(tmp_path: Path) -> None:
    """DAT-08: 30 batches of 4 out of 40 documents, saved at 6 on dp 2; 7 to 30 on dp 2, on dp 1 and on dp 4."""
    flags = (
        f"{corpus(tmp_path)} {NO_DROPOUT} --global-batch-size 4 --num-layers 1 --hidden-size 8 --train-iters 30 "
        "--num-workers 1"
    )
    run_whole(2, f"{flags} --save {tmp_path / 'saved'} --exit-interval 6")
    dataset = open_data(config_of(flags, 1)).datasets.train
    for world_size in (2, 1, 4):
        ranks = run_ranks(batches, world_size, f"{flags} --load {tmp_path / 'saved'}", 24)
        for number, step in enumerate(range(7, 31)):
            expected = {n: dataset.sample(n).tokens[:-1].tolist() for n in range(4 * step - 4, 4 * step)}
            parts = [rank[number] for rank in ranks]
            assert {n: row for part in parts for n, row in part.items()} == expected
            assert sum(map(len, parts)) == 4


def test_validation_before_and_after_a_restart(tmp_path: Path) -> None:
    """EVL-03: every 2 steps or never, and a restart in between: the same training, and the same validation losses."""
    flags = f"{DROPOUT.replace('dropout 0.1', 'dropout 0.3')} --eval-iters 1"
    often, second = straight_and_resumed(tmp_path, "dp2", f"{flags} --eval-interval 2", at=5, steps=10)
    run_whole(2, f"{flags} --eval-interval 1000 --save {tmp_path / 'never'}")
    assert curve(often) == curve(tmp_path / "never")
    assert_same_end(often, tmp_path / "never", 10)
    expected = validation_losses(often)
    assert list(expected) == [2, 4, 6, 8, 10]
    assert validation_losses(second) == {step: expected[step] for step in (6, 8, 10)}
    assert validation_losses(tmp_path / "never") == {10: expected[10]}
