# SPDX-License-Identifier: Apache-2.0
"""EVL-01 and EVL-03: validation counts each token once at every layout, and leaves no trace in training."""

from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_core.data.indexed_writer import IndexedWriter
from megatron_core.model.microbatch import Microbatch
from megatron_core.training.build import Run
from megatron_core.training.metrics import ValidationMetrics
from megatron_core.training.state import RunState
from megatron_core.training.train_step import train_step
from megatron_core.training.validation import validate
from tests.e2e.proof import NO_DROPOUT, corpus, nobody, start_rank
from tests.rank_pool import run_ranks


def flags_of(folder: Path, tokens: int, more: str = "") -> str:
    """A validation set of that many tokens beside the corpus; microbatch 2."""
    data = corpus(folder).replace("--data-path", "--train-data-path").replace("--split 100,0,0", "")
    random = np.random.default_rng(tokens)
    with IndexedWriter(str(folder / "valid"), np.dtype(np.uint16)) as writer:
        writer.add_document(random.integers(0, 63, tokens))
    return f"{data} --valid-data-path {folder / 'valid'} --micro-batch-size 2 --global-batch-size 8 --fp64 {more}"


def validation_of(rank: int, world_size: int, flags: str) -> list[ValidationMetrics]:
    return lines_of(*start_rank(rank, world_size, flags))


def lines_of(run: Run, state: RunState) -> list[ValidationMetrics]:
    """A pass over each set."""
    passes = [
        validate(run, state, name, samples, nobody(run)) for name, samples in run.data.datasets.validation.items()
    ]
    return [found for found in passes if isinstance(found, ValidationMetrics)]


def by_hand(flags: str) -> tuple[float, int]:
    """Mean loss over the targets and their number, sample by sample."""
    run, _ = start_rank(0, 1, flags)
    (samples,) = run.data.datasets.validation.values()
    total, count = 0.0, 0
    for number in range(samples.num_samples):
        sample = samples.sample(number)
        tokens = torch.from_numpy(sample.tokens)[None]
        with torch.no_grad():
            own = Microbatch(position_ids=torch.arange(16)[None], tokens=tokens[:, :-1], labels=tokens[:, 1:])
            losses = run.chunks[0](None, own)
        total += float(losses[0, : sample.num_targets].sum())
        count += sample.num_targets
    return total / count, count


LAYOUTS = {
    "alone": (1, ""),
    "dp2": (2, ""),
    "dp4": (4, ""),
    "tp2": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "pp2-dp2-interleaved": (4, "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("samples", "tokens"), [(3, 40), (5, 81), (5, 67)])
def test_sets_smaller_than_a_batch_and_no_multiple_of_a_microbatch(
    samples: int, tokens: int, layout: str, tmp_path: Path
) -> None:
    """EVL-01: each of 3 or 5 samples once, whatever fills up the last microbatch; the number of tokens is told."""
    flags = flags_of(tmp_path, tokens, f"{NO_DROPOUT} --eval-iters 1")
    loss, count = by_hand(flags)
    assert count == tokens - 1 and -(-count // 16) == samples
    world_size, more = LAYOUTS[layout]
    for (line,) in run_ranks(validation_of, world_size, f"{flags} {more}"):
        assert line.validation_loss == pytest.approx(loss, rel=1e-12)
        assert line.validation_tokens == count


def test_more_or_fewer_batches_than_there_are(tmp_path: Path) -> None:
    """EVL-01: --eval-iters above what there is reads all of it once; 0 validates nothing; --full-validation all."""
    flags = flags_of(tmp_path, 16 * 21 + 1, NO_DROPOUT)
    loss, count = by_hand(f"{flags} --full-validation")
    assert count == 16 * 21
    for more, tokens in (("--eval-iters 1000", count), ("--eval-iters 3", count), ("--full-validation", count)):
        (line,) = validation_of(0, 1, f"{flags} {more}")
        assert (line.validation_loss, line.validation_tokens) == (pytest.approx(loss, rel=1e-12), tokens)
    (line,) = validation_of(0, 1, f"{flags} --eval-iters 2")
    assert line.validation_tokens == 16 * 16
    assert validation_of(0, 1, f"{flags} --eval-iters 0") == []


def losses_with_validation_every(rank: int, world_size: int, flags: str, interval: int) -> list[tuple[float, float]]:
    run, state = start_rank(rank, world_size, flags)
    found = []
    for _ in range(5):
        state, outcome = train_step(run, state)
        found.append((outcome.loss, outcome.grad_norm))
        if state.step % interval == 0:
            lines_of(run, state)
    return found


@pytest.mark.parametrize("layout", ["dp2", "pp2"])
def test_validation_leaves_no_trace_in_training(layout: str, tmp_path: Path) -> None:
    """EVL-03: with dropout on, every bit of losses and norms is the same with a validation every 2 steps and never."""
    world_size, more = LAYOUTS[layout]
    flags = flags_of(tmp_path, 67, f"--hidden-dropout 0.3 --attention-dropout 0.3 --eval-iters 1 {more}")
    often, never = (run_ranks(losses_with_validation_every, world_size, flags, interval)[0] for interval in (2, 9))
    assert often == never


def test_validation_drops_nothing(tmp_path: Path) -> None:
    """EVL-03: the same loss at dropout 0 and 0.5."""
    flags = flags_of(tmp_path, 67, "--eval-iters 1")
    none, half = (validation_of(0, 1, f"{flags} --hidden-dropout {r} --attention-dropout {r}") for r in ("0", "0.5"))
    assert none == half
