# SPDX-License-Identifier: Apache-2.0
"""How long one step takes, and where the time goes: the schedule is played with priced actions.

Stages play the very actions that the runtime executes; around them come the reduction of gradients, the sum of a tied
table's two ends, the optimizer, and the gathering of weights, each as far as nothing hides it.
"""

import dataclasses
import functools
from dataclasses import dataclass

from megatron_core.errors import ConfigError
from megatron_core.pipeline.action import Action, Kind
from megatron_core.pipeline.schedules import build
from megatron_core.pipeline.timeline import Timeline, play
from megatron_core.planner import eager_work
from megatron_core.planner import work as fused_work
from megatron_core.planner.collective_time import CollectiveTime
from megatron_core.planner.constants import MEASURED, Constants
from megatron_core.planner.engine import OURS, OURS_ON_CPU
from megatron_core.planner.hardware import Hardware
from megatron_core.planner.kernel_time import KernelTime
from megatron_core.planner.parameters import stage_parameters, table_parameters
from megatron_core.planner.work import Matmul, Operator, Part, Shape
from megatron_core.planner.workload import Workload


@dataclass(frozen=True)
class PartTime:
    """Seconds of one part of the model for one microbatch on one rank, sums over tp included."""

    forward: float
    input_gradient: float
    weight_gradient: float
    recompute: float
    tp: float
    """Of forward and input gradient, what is communication over tp."""
    split: float
    """What input and weight gradient take more where they are apart: sums over tp that the one would hide behind the
    other, and with sequence parallelism the gathering of inputs again."""

    def plus(self, other: "PartTime") -> "PartTime":
        """Both, one after the other."""
        return PartTime(
            self.forward + other.forward,
            self.input_gradient + other.input_gradient,
            self.weight_gradient + other.weight_gradient,
            self.recompute + other.recompute,
            self.tp + other.tp,
            self.split + other.split,
        )

    def times(self, count: int) -> "PartTime":
        """So many of them."""
        return PartTime(*(count * value for value in vars(self).values()))


_NOTHING = PartTime(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
KnownParts = dict[tuple[Shape, str | int | None], PartTime]
"""Times of a layer by its shape and what of it is recomputed, of a head by its shape and vocabulary."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step; the parts add up to the total."""

    compute: float
    """Forward and backward of the busiest stage, without communication."""
    recompute: float
    """Of the same stage, what is computed again, its communication over tp included."""
    tp: float
    """Communication over tp that nothing hides, of that stage's forward and backward."""
    p2p: float
    """What that stage waits while it sends and receives."""
    bubble: float
    dp: float
    """Reduction of gradients and gathering of weights that nothing hides, the sum of a tied table included."""
    optimizer: float

    @property
    def total(self) -> float:
        """Of the whole step."""
        return sum(vars(self).values())


class StepModel:
    """Prices steps of one workload on one cluster."""

    def __init__(
        self, workload: Workload, hardware: Hardware, constants: Constants, known: KnownParts | None = None
    ) -> None:
        """known: shared by models of workloads that differ in their layout alone, so that no part is priced twice.

        Raises ConfigError where the device cannot compute in the workload's precision.
        """
        # On a device that was measured an operator takes what it took, whatever the constants of others are.
        self._measured = bool(hardware.device.measured_operators)
        if self._measured:
            constants = MEASURED
            workload = workload.replace(engine=OURS_ON_CPU) if workload.engine is OURS else workload
        self._parts = eager_work if self._measured else fused_work
        self.workload, self.constants, self._hardware = workload, constants, hardware
        self._kernels = KernelTime(hardware.device, constants, workload.engine, workload.precision, workload.itemsize)
        self._collectives = CollectiveTime(hardware, constants)
        self._known: KnownParts = {} if known is None else known

    @functools.cached_property
    def layer(self) -> PartTime:
        """One layer, recomputed as the workload says for whole layers or their attention cores."""
        return self._layer(self.workload.recompute.granularity)

    @functools.cached_property
    def layer_kept(self) -> PartTime:
        """One layer that is not recomputed (full recomputation of a block's first layers alone)."""
        return self._layer(None)

    def _layer(self, granularity: str | None) -> PartTime:
        key = self.workload.shape, granularity
        if key not in self._known:
            self._known[key] = self._part(self._parts.layer(self.workload.shape), granularity)
        return self._known[key]

    def chunk(self, k: int) -> PartTime:
        """Virtual stage k."""
        work, count = self.workload, len(self.workload.layers[k])
        again = work.recompute.full_layers(count) if work.recompute.granularity == "full" else count
        time = self.layer.times(again).plus(self.layer_kept.times(count - again))
        if k == 0:
            time = time.plus(self._part(self._parts.embedding(work.shape), None))
        if k == len(work.layers) - 1:
            key = work.shape, work.vocabulary_rows
            if key not in self._known:
                self._known[key] = self._part(self._parts.head(work.shape, work.vocabulary_rows), None)
            time = time.plus(self._known[key])
        return time

    @functools.cached_property
    def chunks(self) -> tuple[PartTime, ...]:
        """All virtual stages."""
        known: dict[tuple[int, bool, bool], PartTime] = {}
        alike = [self._alike(k) for k in range(len(self.workload.layers))]
        for k, key in enumerate(alike):
            if key not in known:
                known[key] = self.chunk(k)
        return tuple(known[key] for key in alike)

    def _alike(self, k: int) -> tuple[int, bool, bool]:
        """What virtual stages that take the same time have in common."""
        layers = self.workload.layers
        return len(layers[k]), k == 0, k == len(layers) - 1

    @functools.cached_property
    def _stage_counts(self) -> dict[int, int]:
        """Of stages that do the same, the first one's number, and how many they are."""
        alike: dict[tuple[tuple[int, bool, bool], ...], list[int]] = {}
        for stage in range(self.workload.pp):
            alike.setdefault(tuple(self._alike(k) for k in self.workload.stage_chunks(stage)), []).append(stage)
        return {stages[0]: len(stages) for stages in alike.values()}

    @functools.cached_property
    def _stages(self) -> dict[int, "_Stage"]:
        """By the number of each stage of `_stage_counts`."""
        return {stage: self._stage(stage) for stage in self._stage_counts}

    @functools.cached_property
    def p2p(self) -> float:
        """One transfer between stages."""
        work = self.workload
        if work.pp == 1:
            return 0.0
        nbytes = work.shape.stream_bytes // (work.tp if work.sequence_parallel else 1)
        shared = work.engine.shares_p2p and not work.sequence_parallel
        return self._collectives.send(nbytes, work.devices, work.tp, shared=shared)

    def duration(self, stage: int, action: Action) -> float:
        """Of one action on one stage."""
        return self._durations[action.chunk * self.workload.pp + stage][action.kind.value]

    @functools.cached_property
    def _durations(self) -> tuple[dict[str, float], ...]:
        """Of each virtual stage, by the letter of an action's kind."""
        found = []
        for k, time in enumerate(self.chunks):
            before = time.recompute + time.input_gradient
            computed = {
                Kind.F: time.forward,
                Kind.B: before + time.weight_gradient,
                Kind.I: before + time.split,
                Kind.W: time.weight_gradient,
            }
            found.append({kind.value: seconds + self._waiting(k, kind) for kind, seconds in computed.items()})
        return tuple(found)

    def _waiting(self, k: int, kind: Kind) -> float:
        """What a stage waits beside an action: one transfer, sent and received at once, but at the model's ends."""
        if not self.workload.engine.waits_for_p2p or kind is Kind.W:
            return 0.0
        at_end = k == len(self.workload.layers) - 1 if kind is Kind.F else k == 0
        return 0.0 if at_end else self.p2p

    @functools.cached_property
    def timeline(self) -> Timeline:
        """The schedule, played."""
        work = self.workload
        schedule = build(work.schedule, work.pp, work.chunks, work.microbatches)
        transfer = 0.0 if work.engine.waits_for_p2p else self.p2p
        return play(schedule, work.chunks, self.duration, transfer=transfer)

    @functools.cached_property
    def quick_makespan(self) -> float:
        """About the timeline's, without playing it: all stages once, and the busiest one for all other microbatches."""
        work = self.workload
        stages, counts = self._stages, self._stage_counts
        busiest = max(stage.busy for stage in stages.values())
        fill = sum(counts[number] * stage.busy for number, stage in stages.items()) - busiest
        if work.schedule == "zero-bubble":
            put_off = sum(counts[number] * stage.time.weight_gradient for number, stage in stages.items())
            fill -= 2 * (put_off - stages[0].time.weight_gradient)
        transfers = 0.0 if work.engine.waits_for_p2p else 2 * (work.pp - 1) * self.p2p
        # Interleaving goes in groups of p; of the gaps of those missing in the last, about half is filled by others.
        missing = -work.microbatches % work.pp / 2 if work.chunks > 1 else 0.0
        return (work.microbatches + missing) * busiest + max(fill, 0.0) / work.chunks + transfers

    def step(self, *, quick: bool = False) -> StepTime:
        """The whole step; `quick`: by `quick_makespan`, for those who compare thousands."""
        m, stages = self.workload.microbatches, self._stages
        one = max(stages.values(), key=lambda stage: stage.busy)
        tail = max(self._reduction(number, stage.last_backward) for number, stage in stages.items())
        optimizer = max(self._optimizer(number) for number in stages)
        compute = one.time.forward + one.time.input_gradient + one.time.weight_gradient - one.time.tp
        recompute = one.time.recompute
        return StepTime(
            compute=m * compute,
            recompute=m * recompute,
            tp=m * one.time.tp,
            p2p=m * one.waiting,
            bubble=(self.quick_makespan if quick else self.timeline.makespan) - m * one.busy,
            dp=tail + self._tied(),
            optimizer=optimizer,
        )

    def _stage(self, stage: int) -> "_Stage":
        """What one microbatch costs a stage, all its chunks together."""
        time, waiting = _NOTHING, 0.0
        for k in self.workload.stage_chunks(stage):
            time = time.plus(self.chunks[k])
            waiting += self._waiting(k, Kind.F) + self._waiting(k, Kind.B)
        if self.workload.schedule == "zero-bubble" and stage > 0:
            split = time.split
            time = dataclasses.replace(time, input_gradient=time.input_gradient + split, tp=time.tp + split)
        return _Stage(time, waiting)

    def _part(self, work: Part, granularity: str | None) -> PartTime:
        engine, shape = self.workload.engine, self.workload.shape
        forward, input_gradient = self._kernels.of(work.forward), self._kernels.of(work.input_gradient)
        weight_gradient = self._kernels.of(work.weight_gradient)
        message = self._collectives.all_reduce(work.message_bytes, self.workload.tp, 1)
        comm = work.tp_messages * message
        # With sequence parallelism half of backward's is gathered before a row-parallel linear's products, which wait.
        # Each column-parallel input is gathered again, beside the input gradient's product.
        can_hide, regathered = (comm / 2, comm / 2) if shape.sequence_parallel else (comm, 0.0)
        hidden = min(can_hide, weight_gradient) if engine.hides_tp_in_backward else 0.0
        if granularity == "full":
            recompute = forward + comm
        else:
            recompute = self._kernels.of(work.core) if granularity == "selective" else 0.0
        return PartTime(
            forward=forward + comm,
            input_gradient=input_gradient + comm - hidden,
            weight_gradient=weight_gradient + self._accumulation(work),
            recompute=recompute,
            tp=2 * comm - hidden,
            split=hidden + regathered,
        )

    def _accumulation(self, work: Part) -> float:
        """Adding weight gradients to what earlier microbatches left."""
        elements = sum(one.m * one.n for one in work.weight_gradient if isinstance(one, Matmul))
        return self._kernels.moving(elements * self.workload.engine.accumulation_bytes)

    def _reduction(self, stage: int, last_backward: float) -> float:
        """What is left of the reduction of gradients and the gathering of weights where nothing hides them."""
        work = self.workload
        count = stage_parameters(work, stage)
        reduce_bytes, gather_bytes = count * work.engine.gradient_bytes, count * work.itemsize
        if not work.distributed_optimizer:
            reduction = self._collectives.all_reduce(reduce_bytes, work.dp, work.tp)
            return self._left(reduction, last_backward, overlapped=work.overlap_grad_reduce)
        reduction = self._collectives.reduce_scatter(reduce_bytes, work.dp, work.tp)
        gathering = self._collectives.gather(gather_bytes, work.dp, work.tp)
        # Gathering hides behind the first forward, which takes about half of a backward.
        return self._left(reduction, last_backward, overlapped=work.overlap_grad_reduce) + self._left(
            gathering, last_backward / 2, overlapped=work.overlap_param_gather
        )

    def _left(self, seconds: float, window: float, *, overlapped: bool) -> float:
        """Of communication, what a step gets longer by: what no window hides, and what it takes from kernels beside."""
        if not overlapped:
            return seconds
        hidden = min(seconds, window)
        return seconds - hidden + self.constants.overlap_cost * hidden

    def _tied(self) -> float:
        """The sum of a tied table's gradients over the two ends of the pipeline."""
        work = self.workload
        if work.pp == 1 or work.model.untie_embeddings_and_output_weights:
            return 0.0
        nbytes = table_parameters(work) * work.engine.gradient_bytes
        return self._collectives.all_reduce(nbytes, 2, work.tp * work.dp)

    def _optimizer(self, stage: int) -> float:
        work, device = self.workload, self._hardware.device
        count = stage_parameters(work, stage)
        shared = count / (work.dp if work.distributed_optimizer else 1)
        if self._measured:
            return self._kernels.of((Operator("clear", count), Operator("update", round(shared)), Operator("step", 1)))
        if not work.optimizer_offload:
            return self._kernels.moving(count * work.engine.replica_bytes + shared * work.engine.optimizer_bytes)
        if not self._hardware.host_adam_gparams_per_s:
            raise ConfigError(f"{self._hardware.name} has no host_adam_gparams_per_s: its hosts' update has no price")
        # The hosts' processors are shared by the devices of a node; weights return behind the update of the next.
        rate = self._hardware.host_adam_gparams_per_s * 1e9 / min(self._hardware.devices_per_node, work.devices)
        link = device.host_link_gb_per_s * 1e9
        update, up = shared / rate, shared * work.itemsize / link
        if not work.engine.hides_host_copies:
            return update + up + shared * work.engine.gradient_bytes / link
        down = 0.0 if work.offload_gradients else shared * work.engine.gradient_bytes / link
        return max(update, up, down)


@dataclass(frozen=True)
class _Stage:
    """One microbatch on one stage."""

    time: PartTime
    waiting: float

    @property
    def busy(self) -> float:
        """Seconds in which the stage does nothing else."""
        time = self.time
        return time.forward + time.input_gradient + time.weight_gradient + time.recompute + self.waiting

    @property
    def last_backward(self) -> float:
        """Seconds of one microbatch's backward, behind which gradients can be reduced."""
        return self.busy - self.time.forward
