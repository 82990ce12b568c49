# SPDX-License-Identifier: Apache-2.0
"""The tasks of --eval-tasks, scored by the weights of a run as they are: the same numbers at every layout."""

from megatron_core.evaluation.multiple_choice import EncodedTask, score_task
from megatron_core.inference.model import InferenceModel
from megatron_core.training.build import DTYPES, Run
from megatron_core.training.metrics import EvaluationMetrics
from megatron_core.training.state import RunState
from megatron_core.training.stop import Stop, StopRequests, ask_all


class _StopAskedError(Exception):
    """Leaves a task in the middle, on all ranks at once."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop)
        self.stop = stop


def evaluate_task(run: Run, state: RunState, task: EncodedTask, requests: StopRequests) -> EvaluationMetrics | Stop:
    """One task, broken off where some rank is asked to stop. All ranks must call."""

    def listen(_: int) -> None:
        if (stop := ask_all(requests, run.ctx)) is not None:
            raise _StopAskedError(stop)

    run.weight_gather.finish()  # the head is read by other ways than a module's forward, which would wait for it
    model = InferenceModel(
        run.config.model,
        run.ctx,
        run.chunks,
        DTYPES[run.config.optim.precision],
        sequence_parallel=run.config.parallel.sequence_parallel,
    )
    try:
        scores = score_task(model, task, listen)
    except _StopAskedError as asked:
        return asked.stop
    return EvaluationMetrics(
        step=state.step,
        consumed_samples=state.consumed_samples,
        consumed_tokens=state.consumed_samples * run.config.model.seq_length,
        evaluation=scores.name,
        evaluation_questions=scores.questions,
        scores={name: estimate.value for name, estimate in scores.metrics.items()},
        standard_errors={name: estimate.standard_error for name, estimate in scores.metrics.items()},
    )
