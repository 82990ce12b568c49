# SPDX-License-Identifier: Apache-2.0
"""DAT-07: the samples of a global batch depend on neither layout, microbatch size nor the length of the run."""

from pathlib import Path

import pytest
import torch

from megatron_core.data.indexed_file import IndexedFile
from megatron_core.errors import DataError
from megatron_core.model.microbatch import Microbatch
from megatron_core.training.run_data import open_data
from megatron_core.training.train_step import train_step
from tests.e2e.proof import NO_DROPOUT, config_of, corpus, start_rank
from tests.rank_pool import run_ranks

STEPS = 18
Rows = dict[int, list[int]]
"""Tokens by sample number."""


def batches_of_a_run(rank: int, world_size: int, flags: str) -> list[Rows]:
    """What this rank's stage was given in each step."""
    run, state = start_rank(rank, world_size, flags)
    steps: list[Rows] = []
    give = run.source.step

    def recording(plan: tuple[tuple[int, ...], ...], dropout: tuple[int, int] | None) -> list[Microbatch]:
        microbatches = give(plan, dropout)
        rows = zip(sum(plan, ()), torch.cat([microbatch.tokens for microbatch in microbatches]).tolist())
        steps.append(dict(rows))
        return microbatches

    run.source.step = recording  # type: ignore[method-assign]
    for _ in range(STEPS):
        state, _ = train_step(run, state)
    run.source.close()
    return steps


LAYOUTS = {
    "dp1-mbs4": (1, "--micro-batch-size 4"),
    "dp2-mbs2": (2, "--micro-batch-size 2"),
    "dp2-mbs1": (2, ""),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "tp2-dp2": (4, "--tensor-model-parallel-size 2"),
    "twice-as-long": (1, "--train-iters 40"),
    "other-threads": (1, "--num-workers 3"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_of_each_batch(layout: str, tmp_path: Path) -> None:
    """DAT-07: equal sets of 18 batches of 4, over more than one epoch; tp and pp ranks see the same rows."""
    flags = f"{corpus(tmp_path)} {NO_DROPOUT} --global-batch-size 4 --num-layers 2 --hidden-size 8 --train-iters 20"
    dataset = open_data(config_of(flags, 1)).datasets.train
    assert IndexedFile(str(tmp_path / "documents")).num_tokens < 4 * STEPS * 16
    world_size, more = LAYOUTS[layout]
    ranks = run_ranks(batches_of_a_run, world_size, f"{flags} {more}")
    for step in range(STEPS):
        expected = {n: dataset.sample(n).tokens[:-1].tolist() for n in range(4 * step, 4 * step + 4)}
        seen: Rows = {}
        for rank in ranks:
            seen |= rank[step]
            if layout in ("pp2", "tp2"):
                assert rank[step] == expected
        assert seen == expected
        assert sum(len(rank[step]) for rank in ranks) == 4 * (2 if layout in ("pp2", "tp2", "tp2-dp2") else 1)


def test_two_epochs_hold_the_same_tokens_in_another_order(tmp_path: Path) -> None:
    dataset = open_data(config_of(corpus(tmp_path), 1)).datasets.train
    size = (IndexedFile(str(tmp_path / "documents")).num_tokens - 1) // 16
    first, second = ([dataset.sample(n + size * epoch).tokens.tolist() for n in range(size)] for epoch in (0, 1))
    assert sorted(first) == sorted(second)
    assert first != second


def test_a_validation_part_that_rounds_to_nothing_ends_the_start(tmp_path: Path) -> None:
    """DAT-05: 949,50,1 of 40 documents leaves 2 to validate on and none to test on, and says so; 99,1,0 none."""
    flags = corpus(tmp_path).replace("100,0,0", "{}") + " --eval-iters 1"
    datasets = open_data(config_of(flags.format("949,50,1"), 1)).datasets
    assert list(datasets.validation) == ["validation"]
    assert datasets.test is None
    with pytest.raises(DataError, match="the valid part is empty"):
        open_data(config_of(flags.format("99,1,0"), 1))
