# SPDX-License-Identifier: Apache-2.0
"""The loop: step, judge, report, save and validate when due, stop when asked."""

import gc
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from megatron_core.config.step_ranges import StepRanges, parse_step_ranges
from megatron_core.data.sample import ValidationData
from megatron_core.training.build import Run
from megatron_core.training.console import LOGGER_NAME
from megatron_core.training.faults import FaultError
from megatron_core.training.profile import ProfileWindow
from megatron_core.training.replica_check import check_replicas
from megatron_core.training.report import Report
from megatron_core.training.saver import Saver
from megatron_core.training.state import RunState
from megatron_core.training.step_metrics import StepMeter
from megatron_core.training.stop import Stop, StopRequests, ask_all
from megatron_core.training.task_evaluation import evaluate_task
from megatron_core.training.train_step import StepOutcome, pass_over, train_step
from megatron_core.training.validation import validate

LOGGER = logging.getLogger(LOGGER_NAME)


@dataclass(frozen=True)
class Ending:
    """Where and why the loop ended."""

    run: Run
    """Not the one that began, after a roll-back."""
    state: RunState
    stop: Stop | None
    """What was asked for; None: the run came to its end or to --exit-interval."""
    validated: bool
    """Whether the last step was followed by a validation."""

    @property
    def reason(self) -> str:
        """For the log and exit.json."""
        training = self.run.config.training
        if self.stop is not None:
            return self.stop.describe(training)
        finished = self.state.step >= self.run.length.steps
        return "finished" if finished else f"exit_interval {training.exit_interval}"


def train(
    run: Run, state: RunState, saver: Saver, report: Report, profile: ProfileWindow, requests: StopRequests
) -> Ending:
    """Train from `state` to the end of the run or until a limit. Raises FaultError where it cannot go on."""
    training = run.config.training
    to_skip = parse_step_ranges(training.iterations_to_skip)
    meter = StepMeter(run)
    if training.manual_gc:
        gc.disable()
        gc.collect()
    validated_at = -1
    stop = ask_all(requests, run.ctx)
    if stop is Stop.DURATION:
        stop = None  # a start that takes long must not keep the run from getting on; all else ends it here
    while state.step < run.length.steps and stop is None:
        profile.before_step(state.step + 1)
        begin = time.perf_counter()
        saver.poll()
        if _is_passed_over(state, to_skip):
            state = pass_over(run, state)
            LOGGER.warning("step %d passed over, its batch left out", state.step)
            stop = ask_all(requests, run.ctx)
        else:
            with meter.watch(run, state.step + 1):
                taken, outcome = train_step(run, state, requests.votes())
            _say(run, outcome)
            if outcome.verdict.action == "rollback":
                run, state = saver.roll_back(run, state, outcome.verdict.reason)
                continue
            state, stop = taken, outcome.stop
            seconds = time.perf_counter() - begin
            report.step(meter.metrics(run, state, outcome, seconds))
        state = replace(state, elapsed_s=state.elapsed_s + time.perf_counter() - begin)
        profile.after_step(state.step)
        _check_replicas(run, state)
        paused = saver.after_step(run, state)
        if _is_due(state, training.eval_interval) and stop is None:
            stop = _validate(run, state, report, requests)
            validated_at = state.step if stop is None else validated_at
            paused = True
        if _is_due(state, training.manual_gc_interval) and training.manual_gc:
            gc.collect()
        if paused and stop is None:
            stop = ask_all(requests, run.ctx)  # before the next step, which may be longer than the time that is left
        if _is_due(state, training.exit_interval):
            break
    return Ending(run, state, stop, validated_at == state.step)


def validate_at_end(ending: Ending, report: Report, requests: StopRequests) -> Ending:
    """The last validation, where the last step did not have one, and the test set; a run out of time has neither."""
    run, state, datasets = ending.run, ending.state, ending.run.data.datasets
    stop = ending.stop
    if stop is None and not ending.validated:
        stop = _validate(run, state, report, requests)
    if stop is None and datasets.test is not None:
        stop = _validate_sets(run, state, report, {"test": datasets.test}, requests)
    return replace(ending, stop=stop)


def _is_due(state: RunState, interval: int | None) -> bool:
    return interval is not None and interval > 0 and state.step % interval == 0


def _is_passed_over(state: RunState, to_skip: StepRanges) -> bool:
    return state.step + 1 in state.skipped_steps or to_skip.contains(state.step + 1)


def _say(run: Run, outcome: StepOutcome) -> None:
    """A fault, by rank 0. Raises FaultError where it ends the run."""
    if outcome.verdict.action == "stop":
        raise FaultError(outcome.verdict.reason)
    if outcome.verdict.reason and run.ctx.rank == 0:
        LOGGER.warning(outcome.verdict.reason)


def _check_replicas(run: Run, state: RunState) -> None:
    if _is_due(state, run.config.training.check_weight_hash_across_dp_replicas_interval):
        held = run.held(with_optim=True, applied_steps=state.applied.steps)
        check_replicas([tensor for tensor in held if tensor.replicated], run.ctx, state.step)


def _validate(run: Run, state: RunState, report: Report, requests: StopRequests) -> Stop | None:
    """Report all validation sets and tasks; why it was broken off, or None."""
    stop = _validate_sets(run, state, report, run.data.datasets.validation, requests)
    for task in run.data.tasks:
        if stop is not None:
            break
        found = evaluate_task(run, state, task, requests)
        if isinstance(found, Stop):
            return found
        report.evaluation(found)
    return stop


def _validate_sets(
    run: Run, state: RunState, report: Report, sets: Mapping[str, ValidationData], requests: StopRequests
) -> Stop | None:
    """Report a pass over each set; why it was broken off, or None."""
    for name, samples in sets.items():
        found = validate(run, state, name, samples, requests)
        if isinstance(found, Stop):
            return found
        report.validation(found)
    return None
