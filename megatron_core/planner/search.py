# SPDX-License-Identifier: Apache-2.0
"""Finds the layout in which a model trains fastest on so many devices.

Of all layouts those that fit are priced, both told without playing their schedules; of the fastest, no two of them
alike in all but microbatch, recomputation and sequence parallelism, the schedules are played. Where nothing fits, the
optimizer goes to the host.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from megatron_core.config.run import RunConfig
from megatron_core.planner.constants import Constants
from megatron_core.planner.hardware import Hardware
from megatron_core.planner.layouts import Layout, layouts
from megatron_core.planner.memory_parts import Memory
from megatron_core.planner.peak_memory import host_bytes, peak_memory, quick_peak_memory
from megatron_core.planner.stage_layers import stage_layers
from megatron_core.planner.step_time import KnownParts, StepModel, StepTime
from megatron_core.planner.workload import Recompute, Workload

PLAYED = 12
"""So many layouts have their schedules played."""
ALIKE = 3
"""So many of the same tp and pp are among them."""
MISSED = 3
"""So many that do not fit are told in full."""


@dataclass(frozen=True)
class Planned:
    """A layout and what is expected of it."""

    layout: Layout
    config: RunConfig
    """The run in this layout, not yet resolved."""
    workload: Workload
    time: StepTime
    memory: Memory
    """Of the stage that needs most; of the first of those found by playing its schedule, of others without."""


@dataclass(frozen=True)
class Found:
    """What a search found."""

    ranked: tuple[Planned, ...]
    """Fastest first."""
    too_large: tuple[Planned, ...]
    """Of what would be faster than the first of these but does not fit, the fastest; where nothing fits, what needs
    least."""
    fitting: int
    """Layouts that fit."""
    dropped: Mapping[str, int]
    """Reason -> layouts left out for it."""


def search(config: RunConfig, hardware: Hardware, devices: int, constants: Constants) -> Found:
    """The best layouts of a run that is not resolved; its own layout does not matter.

    Raises ConfigError without a global batch, or where the device cannot compute in the run's precision.
    """
    found = _search(config, hardware, devices, constants)
    offloads = config.optim.optimizer == "adam" and hardware.host_adam_gparams_per_s > 0
    if found.ranked or config.optim.optimizer_cpu_offload or not offloads:
        return found
    optim = dataclasses.replace(config.optim, optimizer_cpu_offload=True)
    offloaded = _search(dataclasses.replace(config, optim=optim), hardware, devices, constants)
    return offloaded if offloaded.ranked else found


def plan(config: RunConfig, layout: Layout, hardware: Hardware, constants: Constants) -> Planned:
    """What to expect of a run in a layout, the time of its step by playing its schedule."""
    placed, devices = layout.of(config), layout.tp * layout.pp * layout.dp
    workload = Workload.of(placed.resolve(devices), devices)
    time = StepModel(workload, hardware, constants).step()
    return Planned(layout, placed, workload, time, quick_peak_memory(workload, hardware))


@dataclass(frozen=True, slots=True)
class _Candidate:
    layout: Layout
    workload: Workload
    memory: Memory


def _search(config: RunConfig, hardware: Hardware, devices: int, constants: Constants) -> Found:
    fitting, too_large, dropped = _sorted_out(config, hardware, devices)
    known: KnownParts = {}

    def by_time(candidates: list[_Candidate]) -> list[tuple[float, _Candidate]]:
        models = [StepModel(one.workload, hardware, constants, known) for one in candidates]
        return sorted(zip((model.step(quick=True).total for model in models), candidates), key=lambda pair: pair[0])

    chosen = _unlike([one.layout for _, one in by_time(fitting)])
    planned = [plan(config, layout, hardware, constants) for layout in chosen[:PLAYED]]
    ranked = _confirmed(sorted(planned, key=lambda one: one.time.total), hardware)
    best = ranked[0].time.total if ranked else math.inf
    missed = [one for seconds, one in by_time(too_large) if seconds < best]
    if not ranked:
        missed = sorted(missed, key=lambda one: one.memory.total)
    faster = [plan(config, one.layout, hardware, constants) for one in missed[:MISSED]]
    return Found(
        ranked=tuple(ranked),
        too_large=tuple(one for one in faster if one.time.total < best),
        fitting=len(fitting),
        dropped=dropped,
    )


def _unlike(fastest: list[Layout]) -> list[Layout]:
    """Of layouts, fastest first, the first of each kind, and few kinds of the same sizes."""
    found: dict[Layout, Layout] = {}
    sizes: Counter[tuple[int, int]] = Counter()
    for layout in fastest:
        kind = dataclasses.replace(layout, micro_batch=1, sequence_parallel=False, recompute=None)
        if kind not in found and sizes[layout.tp, layout.pp] < ALIKE:
            found[kind] = layout
            sizes[layout.tp, layout.pp] += 1
    return list(found.values())


def _confirmed(ranked: list[Planned], hardware: Hardware) -> list[Planned]:
    """From the first on that fits with its schedule played."""
    for number, one in enumerate(ranked):
        memory = peak_memory(one.workload, hardware)
        if memory.total <= hardware.device.memory_gb * 1e9:
            return [dataclasses.replace(one, memory=memory), *ranked[number + 1 :]]
    return []


def _sorted_out(
    config: RunConfig, hardware: Hardware, devices: int
) -> tuple[list[_Candidate], list[_Candidate], Mapping[str, int]]:
    """What fits; of what does not, the smallest microbatch of each; and how many were left out for which reason."""
    workload_of = _Workloads(config, devices)
    fitting: list[_Candidate] = []
    too_large: list[_Candidate] = []
    dropped: Counter[str] = Counter()
    reason: dict[Layout, str] = {}  # by the layout with a microbatch of 1
    for layout in layouts(config, devices, hardware.devices_per_node):
        alike = dataclasses.replace(layout, micro_batch=1)
        if alike not in reason:
            workload = workload_of(layout)
            memory = quick_peak_memory(workload, hardware)
            lacking = _lack(workload, memory, hardware, devices)
            if lacking is None:
                fitting.append(_Candidate(layout, workload, memory))
                continue
            too_large.append(_Candidate(layout, workload, memory))
            reason[alike] = lacking
        dropped[reason[alike]] += 1
    return fitting, too_large, dropped


def _lack(workload: Workload, memory: Memory, hardware: Hardware, devices: int) -> str | None:
    """Why it does not fit; None where it does."""
    room = hardware.device.memory_gb * 1e9
    if memory.weights + memory.gradients + memory.optimizer > room:
        return "weights, gradients and optimizer alone are larger than the device's memory"
    if memory.total > room:
        return "with activations and buffers more than the device's memory"
    if host_bytes(workload) * min(devices, hardware.devices_per_node) > hardware.host_memory_gb * 1e9:
        return "optimizer and gradients of a node's ranks are larger than the host's memory"
    return None


class _Workloads:
    """Workloads of many layouts of one run, without a whole configuration for each."""

    def __init__(self, config: RunConfig, devices: int) -> None:
        self._config, self._devices = config, devices
        self._base: Workload | None = None
        self._layers: dict[tuple[int, int, str], tuple[range, ...]] = {}

    def __call__(self, layout: Layout) -> Workload:
        """As `Workload.of` has it."""
        config, sharded = self._config, layout.dp > 1 and self._config.optim.optimizer == "adam"
        if self._base is None:
            self._base = Workload.of(layout.of(config).resolve(self._devices), self._devices)
        optim = config.optim
        on_host = optim.offload_gradients == "host" or (optim.offload_gradients == "auto" and layout.pp == 1)
        return self._base.replace(
            tp=layout.tp,
            pp=layout.pp,
            dp=layout.dp,
            chunks=layout.chunks,
            layers=self._cut(layout),
            schedule=layout.schedule,
            micro_batch=layout.micro_batch,
            microbatches=self._base.global_batch // (layout.micro_batch * layout.dp),
            sequence_parallel=layout.sequence_parallel,
            recompute=Recompute(granularity=layout.recompute),
            distributed_optimizer=sharded,
            overlap_grad_reduce=layout.dp > 1,
            overlap_param_gather=sharded,
            offload_gradients=optim.optimizer_cpu_offload and on_host,
        )

    def _cut(self, layout: Layout) -> tuple[range, ...]:
        key = layout.pp, layout.chunks, layout.split
        if key not in self._layers:
            config = layout.of(self._config)
            self._layers[key] = stage_layers(config.model, config.parallel)
        return self._layers[key]
