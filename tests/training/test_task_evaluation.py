# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from megatron_core.training.metrics import EvaluationMetrics
from megatron_core.training.stop import Stop
from megatron_core.training.task_evaluation import evaluate_task
from megatron_core.training.train_step import train_step
from tests.e2e.proof import nobody, start_rank
from tests.rank_pool import run_ranks

LAYOUTS = {
    "tp2": (2, "--tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity full"),
    "pp2-interleaved": (2, "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"),
    "zero": (2, "--use-distributed-optimizer --overlap-param-gather"),
}


def flags_of(folder: Path, rows: int = 9) -> str:
    """A run in fp64 with a task of so many questions, of all lengths up to more than the model reads."""
    path = folder / "rows.jsonl"
    path.write_text("".join(f'{{"text": "{"so " * number}it is"}}\n' for number in range(rows)))
    return (
        f"--mock-data --tokenizer-type ByteTokenizer --position-embedding-type rope --hidden-dropout 0.1 --fp64 "
        f"--eval-tasks lambada={path}"
    )


def curve_with_evaluation_every(
    rank: int, world_size: int, flags: str, interval: int
) -> tuple[list[float], list[EvaluationMetrics]]:
    """Losses of four steps, and the scores in between."""
    run, state = start_rank(rank, world_size, flags)
    losses, scores = [], []
    for _ in range(4):
        state, outcome = train_step(run, state)
        losses.append(outcome.loss)
        if state.step % interval == 0:
            (task,) = run.data.tasks
            found = evaluate_task(run, state, task, nobody(run))
            assert isinstance(found, EvaluationMetrics)
            scores.append(found)
    run.source.close()
    return losses, scores


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_scores_at_every_layout_and_no_trace_in_training(layout: str, tmp_path: Path) -> None:
    flags = flags_of(tmp_path)
    _, alone = curve_with_evaluation_every(0, 1, flags, 2)
    world_size, more = LAYOUTS[layout]
    never, _ = run_ranks(curve_with_evaluation_every, world_size, f"{flags} {more}", 9)[0]
    for losses, scores in run_ranks(curve_with_evaluation_every, world_size, f"{flags} {more}", 2):
        assert losses == never
        assert [(found.step, found.evaluation, found.evaluation_questions) for found in scores] == [
            (2, "lambada", 9),
            (4, "lambada", 9),
        ]
        for found, expected in zip(scores, alone):
            assert found.scores == pytest.approx(expected.scores, rel=1e-8)
            assert found.standard_errors == pytest.approx(expected.standard_errors, rel=1e-8)


def test_a_task_ends_where_some_rank_was_asked_to_stop(tmp_path: Path) -> None:
    run, state = start_rank(0, 1, flags_of(tmp_path))
    requests = nobody(run)
    requests.save_failed = True
    assert evaluate_task(run, state, run.data.tasks[0], requests) is Stop.SAVE_FAILURE
