# SPDX-License-Identifier: Apache-2.0
"""What is planned, in words and numbers for people."""

from megatron_core.planner.flops import flops_per_step
from megatron_core.planner.hardware import Hardware
from megatron_core.planner.memory_parts import Memory
from megatron_core.planner.step_time import StepTime
from megatron_core.planner.workload import Workload

TIME_NAMES = {
    "compute": "forward and backward",
    "recompute": "recomputation",
    "tp": "sums within layers (tp)",
    "p2p": "transfers between stages",
    "bubble": "pipeline bubble",
    "dp": "gradients and weights (dp)",
    "optimizer": "update",
}
"""Parts of a step."""


def time_table(time: StepTime) -> list[tuple[str, str, str]]:
    """Part, seconds and share of each part that takes time, then of the whole step."""
    parts = [(TIME_NAMES[name], seconds) for name, seconds in vars(time).items() if seconds > 0]
    rows = [(name, f"{seconds:.3f}", f"{seconds / time.total:.1%}") for name, seconds in parts]
    return [*rows, ("step", f"{time.total:.3f}", "")]


def memory_table(stages: dict[int, Memory]) -> list[tuple[str, ...]]:
    """Category and GB of each stage, then the sums."""
    names = list(vars(next(iter(stages.values()))))
    rows = [(name, *(f"{getattr(memory, name) / 1e9:.2f}" for memory in stages.values())) for name in names]
    return [*rows, ("together", *(f"{memory.total / 1e9:.2f}" for memory in stages.values()))]


def limit(time: StepTime, best: StepTime) -> str:
    """What a layout loses most by: against the best one, or, of the best itself, beside computation."""
    if time is best:
        name = max((name for name in vars(time) if name != "compute"), key=lambda name: vars(time)[name])
        return f"{vars(time)[name]:.2f} s {TIME_NAMES[name]}"
    more = {name: seconds - vars(best)[name] for name, seconds in vars(time).items()}
    name = max(more, key=lambda name: more[name])
    return f"{more[name]:+.2f} s {TIME_NAMES[name]}"


def rates(workload: Workload, hardware: Hardware, seconds: float) -> tuple[float, float, float]:
    """Tokens a second, model TFLOP/s of a device, and their share of its peak (MFU)."""
    tokens = workload.global_batch * workload.model.seq_length / seconds
    flops = flops_per_step(workload.model, workload.global_batch) / seconds / workload.devices
    return tokens, flops / 1e12, flops / hardware.device.peak(workload.precision)
