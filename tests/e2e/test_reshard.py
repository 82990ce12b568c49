# SPDX-License-Identifier: Apache-2.0
"""Any layout goes on from any other: saved after 3 steps at one, 5 more at the next, in float64, against one process.

Whole runs as the command line makes them, optimizer state and dropout included. The default suite goes once round all
layouts; `slow` takes every pair.
"""

import functools
from pathlib import Path

import pytest

from tests.e2e.proof import FAMILIES, run_whole
from tests.e2e.run_folder import assert_close, assert_same_end

TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
PADDED = "--make-vocab-size-divisible-by 128"
LAYOUTS = {
    "alone": (1, ""),
    "tp4": (4, "--tensor-model-parallel-size 4"),  # more than the llama's 2 groups: each is held twice
    "pp2": (2, f"{PP2} {PADDED}"),
    "dp2": (2, "--ddp-bucket-size 300"),
    "pp2-interleaved": (2, f"{PP2} --num-virtual-stages-per-pipeline-rank 2"),
    "tp2-pp2-dp2-sp": (8, f"{TP2} {PP2} --sequence-parallel"),
    "pp4": (4, "--pipeline-model-parallel-size 4 --pipeline-schedule zero-bubble"),
    "dp4-zero": (4, "--use-distributed-optimizer --overlap-param-gather --ddp-bucket-size 300"),
    "tp2-pp2-dp2-zero": (8, f"{TP2} {PP2} --use-distributed-optimizer {PADDED}"),
    "tp2-sp-padded": (2, f"{TP2} --sequence-parallel {PADDED}"),
}
MODELS = {"tied-dropout": FAMILIES["dropout"], "llama": FAMILIES["llama"]}
"""Both with a vocabulary of 61."""

SAVED, STEPS = 3, 8
SCHEDULE = f"--fp64 --global-batch-size 4 --lr-decay-style cosine --lr-decay-iters {STEPS} --lr-warmup-iters 2"


def run(model: str, layout: str, flags: str) -> None:
    world_size, layout_flags = LAYOUTS[layout]
    run_whole(world_size, f"{MODELS[model]} {SCHEDULE} --train-iters {STEPS} {layout_flags} {flags}")


@functools.cache
def straight(root: Path, model: str) -> Path:
    """Where one process has run to the end."""
    folder = root / f"straight-{model}"
    run(model, "alone", f"--save {folder}")
    return folder


@functools.cache
def source(root: Path, model: str, layout: str) -> Path:
    """Where a layout has saved step 3 and ended."""
    folder = root / f"{model}-{layout}"
    run(model, layout, f"--save {folder} --exit-interval {SAVED}")
    return folder


def hand_on(model: str, layout: str, load: Path, save: Path) -> None:
    """Load step 3 and save it as it is: a run whose end is reached."""
    run(model, layout, f"--load {load} --save {save} --train-iters {SAVED}")


def prove_goes_on(root: Path, model: str, a: str, b: str) -> None:
    folder = root / f"{model}-{a}-on-{b}"
    run(model, b, f"--load {source(root, model, a)} --save {folder}")
    assert_close(folder, straight(root, model), STEPS, after=SAVED)


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the tests of this file, so that a run serves all that start from it."""
    folder = tmp_path_factory.getbasetemp() / "reshard"
    folder.mkdir(exist_ok=True)
    return folder


NAMES = list(LAYOUTS)
ROUND = list(zip(NAMES, NAMES[1:] + NAMES[:1]))


@pytest.mark.parametrize("number", range(len(ROUND)), ids=["-to-".join(pair) for pair in ROUND])
def test_each_layout_goes_on_from_the_one_before(number: int, root: Path) -> None:
    prove_goes_on(root, list(MODELS)[number % 2], *ROUND[number])


@pytest.mark.parametrize("model", MODELS)
def test_a_checkpoint_comes_back_from_a_tour_of_all_layouts_bit_for_bit(model: str, root: Path) -> None:
    """Each hand that it goes through cuts it anew."""
    start = source(root, model, NAMES[0])
    at = start
    for name in [*NAMES[1:], NAMES[0]]:
        at, before = root / f"{model}-tour-{name}", at
        hand_on(model, name, before, at)
        assert_same_end(at, start, SAVED)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("a", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_from_every_layout_and_back(model: str, a: str, root: Path) -> None:
    for b in LAYOUTS:
        prove_goes_on(root, model, a, b)
        there, back = root / f"{model}-{a}-at-{b}", root / f"{model}-{a}-back-from-{b}"
        hand_on(model, b, source(root, model, a), there)
        hand_on(model, a, there, back)
        assert_same_end(back, source(root, model, a), SAVED)
