# SPDX-License-Identifier: Apache-2.0
"""What a step takes beside its operators: Python, autograd's nodes, modules, batches. Found from runs of tiny models.

T(L, m) = step + m (microbatch + L layer) is measured for two numbers of layers and of microbatches; what the planner
says of their operators and products is taken off, and what is left is shared out.
"""

from collections.abc import Iterator

from megatron_core.config.cli import parse
from megatron_core.config.optim import Precision
from megatron_core.config.run import RunConfig
from megatron_core.parallel.context import single_process_context
from megatron_core.planner.constants import Constants
from megatron_core.planner.eager_work import BACKWARD
from megatron_core.planner.hardware import Hardware, MeasuredOperator
from megatron_core.planner.step_time import StepModel
from megatron_core.planner.workload import Workload
from megatron_core.training.build import build_run, initial_state
from megatron_core.training.measured_operators import timed
from megatron_core.training.run_data import open_data
from megatron_core.training.train_step import train_step

_TINY = (
    "--hidden-size 64 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16 --hidden-dropout 0 "
    "--attention-dropout 0 --mock-data --vocab-size 64 --lr 1e-4 --eval-iters 0 --train-iters 1000000 "
    "--micro-batch-size 1"
)
_FLAGS: dict[Precision, str] = {"fp32": "", "bf16": "--bf16", "fp16": "--fp16", "fp64": "--fp64"}
_LAYERS, _MICROBATCHES = (2, 8), (1, 8)
_FORWARD = 1 / 3
"""Of overheads, the share of forward: backward's nodes and hooks are about twice as many."""


def measure_overheads(hardware: Hardware, precision: Precision) -> Iterator[MeasuredOperator]:
    """`layer`, `microbatch` and `step`, on hardware whose operators are measured."""
    without = hardware.with_operators(_operators(layer=0.0, microbatch=0.0, step=0.0))
    few, many = _LAYERS
    one, several = _MICROBATCHES
    left = {
        (layers, count): max(_measured(config) - _predicted(config, without), 0.0)
        for layers, count in ((few, one), (few, several), (many, several))
        for config in [_config(layers, count, precision)]
    }
    layer = (left[many, several] - left[few, several]) / (several * (many - few))
    microbatch = (left[few, several] - left[few, one]) / (several - one) - few * layer
    step = left[few, one] - microbatch - few * layer
    yield from _operators(layer=layer, microbatch=microbatch, step=step)


def _operators(**seconds: float) -> list[MeasuredOperator]:
    found = []
    for name, whole in seconds.items():
        share = 1.0 if name == "step" else _FORWARD
        found.append(MeasuredOperator(name=name, amount=1, seconds=max(share * whole, 0.0)))
        found.append(MeasuredOperator(name=name + BACKWARD, amount=1, seconds=max((1 - share) * whole, 0.0)))
    return found


def _config(layers: int, microbatches: int, precision: Precision) -> RunConfig:
    flags = f"{_TINY} --num-layers {layers} --global-batch-size {microbatches} {_FLAGS[precision]}"
    return parse(flags.split(), 1).config


def _measured(config: RunConfig) -> float:
    """Seconds of a step of the real program, alone in its process."""
    states = [initial_state(config)]
    run = build_run(config, single_process_context(), open_data(config), states[0])

    def step() -> None:
        states[0], _ = train_step(run, states[0])

    return timed(step, seconds=0.6)


def _predicted(config: RunConfig, hardware: Hardware) -> float:
    return StepModel(Workload.of(config, 1), hardware, Constants()).step().total
