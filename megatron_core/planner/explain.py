# SPDX-License-Identifier: Apache-2.0
"""Why one layout is faster than another: one change after the other, each with what it gains.

What a change gains depends on those before it; the order here is that in which they were published. Gains are of
throughput: seconds before over seconds after, less one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megatron_core.config.parallel import ParallelConfig
from megatron_core.planner.constants import Constants
from megatron_core.planner.hardware import Hardware
from megatron_core.planner.parameters import layer_parameters
from megatron_core.planner.stage_layers import stage_layers
from megatron_core.planner.step_time import StepModel
from megatron_core.planner.workload import Recompute, Workload


@dataclass(frozen=True)
class Published:
    """What others measured for the same change."""

    gain: float
    source: str


@dataclass(frozen=True)
class Cause:
    """One change."""

    name: str
    seconds: float
    """Of the step once it is made."""
    gain: float
    published: Published | None
    """Of the measured case that is most alike; None: there is none."""


KEPT_IN_PLACE_OF_FULL = (
    (22e9, Published(0.290, "Korthikanti et al. 2022, table 5, 22B on 8 A100")),
    (175e9, Published(0.318, "Korthikanti et al. 2022, table 5, 175B on 64 A100")),
    (530e9, Published(0.297, "Korthikanti et al. 2022, table 5, 530B on 280 A100")),
    (1000e9, Published(0.321, "Korthikanti et al. 2022, table 5, 1T on 512 A100")),
)
"""Parameters, and what sequence parallelism with selective recomputation gained over full recomputation."""
INTERLEAVED = (
    (1, Published(119 / 82 - 1, "Narayanan et al. 2021, figure 12, batch 12 on 12 stages")),
    (2, Published(134 / 109 - 1, "Narayanan et al. 2021, figure 12, batch 24 on 12 stages")),
    (3, Published(141 / 122 - 1, "Narayanan et al. 2021, figure 12, batch 36 on 12 stages")),
    (4, Published(143 / 130 - 1, "Narayanan et al. 2021, figure 12, batch 48 on 12 stages")),
    (5, Published(146 / 135 - 1, "Narayanan et al. 2021, figure 12, batch 60 on 12 stages")),
)
"""Microbatches a stage, and what interleaving gained over 1F1B for 175B (4 chunks a rank)."""


def explain(before: Workload, after: Workload, hardware: Hardware, constants: Constants) -> tuple[Cause, ...]:
    """What takes a step from `before` to `after`, both of the same model and batch on the same devices."""
    causes, seconds = [], StepModel(before, hardware, constants).step().total
    for name, workload, published in _changes(before, after):
        now = StepModel(workload, hardware, constants).step().total
        causes.append(Cause(name, now, seconds / now - 1, published))
        seconds = now
    return tuple(causes)


def _changes(before: Workload, after: Workload) -> Iterator[tuple[str, Workload, Published | None]]:
    """Each change that there is, and the workload once it is made."""
    now = before
    if now.engine != after.engine:
        now = now.replace(engine=after.engine)
        yield f"the program: {after.engine.name}", now, None
    exchange = {
        "distributed_optimizer": after.distributed_optimizer,
        "overlap_grad_reduce": after.overlap_grad_reduce,
        "overlap_param_gather": after.overlap_param_gather,
        "optimizer_offload": after.optimizer_offload,
        "offload_gradients": after.offload_gradients,
    }
    if (changed := now.replace(**exchange)) != now:
        now = changed
        yield "gradients and weights exchanged behind computation", now, None
    yield from _recomputation(now, after)
    now = now.replace(sequence_parallel=after.sequence_parallel, recompute=after.recompute)
    if (scheduled := _scheduled(now, after)) != now:
        now = scheduled
        interleaved = now.schedule == "interleaved" and before.schedule == "1f1b"
        name = f"interleaving, {now.chunks} chunks a rank" if now.chunks > 1 else f"schedule {now.schedule}"
        yield name, now, _nearest(INTERLEAVED, now.microbatches / now.pp) if interleaved else None
    if now != after:
        yield "sizes, microbatch and share of layers", after, None


def _recomputation(now: Workload, after: Workload) -> Iterator[tuple[str, Workload, Published | None]]:
    """First as it was published: parts of layers instead of whole ones, with the sequence cut; then what else is."""
    if now.recompute.granularity == "full" != after.recompute.granularity:
        cut = now.tp > 1 and not now.sequence_parallel
        now = now.replace(sequence_parallel=now.tp > 1, recompute=Recompute(granularity="selective"))
        size = now.model.num_layers * layer_parameters(now.model, 1)
        published = _nearest(KEPT_IN_PLACE_OF_FULL, size) if cut else None
        yield f"{'sequence parallelism and ' if cut else ''}selective recomputation", now, published
    if now.sequence_parallel != after.sequence_parallel:
        now = now.replace(sequence_parallel=after.sequence_parallel)
        yield f"{'with' if after.sequence_parallel else 'without'} sequence parallelism", now, None
    if now.recompute != after.recompute:
        now = now.replace(recompute=after.recompute)
        yield f"recomputation of {after.recompute.granularity or 'nothing'}", now, None


def _scheduled(now: Workload, after: Workload) -> Workload:
    """`now` with the schedule and chunks of `after`, where its stages have layers for them."""
    if now.pp == after.pp:
        return now.replace(schedule=after.schedule, chunks=after.chunks, layers=after.layers)
    if now.pp * after.chunks > now.model.num_layers or 1 in (now.pp, after.pp):
        return now
    parallel = ParallelConfig(
        pipeline_model_parallel_size=now.pp,
        num_virtual_stages_per_pipeline_rank=after.chunks if after.chunks > 1 else None,
    )
    return now.replace(schedule=after.schedule, chunks=after.chunks, layers=stage_layers(now.model, parallel))


def _nearest(cases: Sequence[tuple[float, Published]], size: float) -> Published:
    """Of the case whose number is nearest by ratio."""
    return min(cases, key=lambda case: abs(math.log(case[0] / size)))[1]
