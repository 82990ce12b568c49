# SPDX-License-Identifier: Apache-2.0
"""The search finds what pricing every layout would, and tells what does not fit."""

import dataclasses

import pytest

from megatron_core.config.data import DataConfig
from megatron_core.config.model import ModelConfig
from megatron_core.config.optim import OptimConfig
from megatron_core.config.run import RunConfig
from megatron_core.config.training import TrainingConfig
from megatron_core.config.validate import violations
from megatron_core.errors import ConfigError
from megatron_core.planner.constants import Constants
from megatron_core.planner.explain import explain
from megatron_core.planner.hardware import Hardware, hardware
from megatron_core.planner.layouts import Layout, layouts
from megatron_core.planner.peak_memory import quick_peak_memory
from megatron_core.planner.search import PLAYED, Found, plan, search
from megatron_core.planner.step_time import StepModel
from megatron_core.planner.workload import Recompute, Workload
from tests.planner.test_explain import MT_NLG, published

NODES = hardware("dgx-a100-80")
RUN = RunConfig(
    data=DataConfig(mock_data=True),
    model=ModelConfig(
        num_layers=8,
        hidden_size=4096,
        num_attention_heads=32,
        seq_length=2048,
        max_position_embeddings=2048,
        vocab_size=50257,
    ),
    optim=OptimConfig(lr=1e-4, bf16=True),
    training=TrainingConfig(micro_batch_size=1, global_batch_size=16, train_iters=10),
)


def with_memory(gigabytes: float) -> Hardware:
    return dataclasses.replace(NODES, device=dataclasses.replace(NODES.device, memory_gb=gigabytes))


def found(machine: Hardware, config: RunConfig = RUN, devices: int = 8) -> Found:
    return search(config, machine, devices, Constants())


def every(machine: Hardware, config: RunConfig = RUN, devices: int = 8) -> dict[Layout, float]:
    """Of all layouts that fit, the seconds of a played step."""
    seconds = {}
    for layout in layouts(config, devices, machine.devices_per_node):
        workload = Workload.of(layout.of(config).resolve(devices), devices)
        if quick_peak_memory(workload, machine).total <= machine.device.memory_gb * 1e9:
            seconds[layout] = StepModel(workload, machine, Constants()).step().total
    return seconds


@pytest.mark.parametrize("gigabytes", [80.0, 14.0])
def test_the_first_is_the_fastest_of_all_that_fit(gigabytes: float) -> None:
    machine = with_memory(gigabytes)
    result, seconds = found(machine), every(machine)
    assert result.fitting == len(seconds) and len(result.ranked) <= PLAYED
    assert result.ranked[0].time.total <= 1.01 * min(seconds.values())
    assert [one.time.total for one in result.ranked] == sorted(one.time.total for one in result.ranked)
    for one in result.ranked:
        assert one.time.total == seconds[one.layout]
        assert violations(one.config, 8) == []


def test_what_is_faster_and_does_not_fit_is_told_with_its_reason() -> None:
    machine = with_memory(10.0)
    result = found(machine)
    total = result.fitting + sum(result.dropped.values())
    assert total == len(list(layouts(RUN, 8, 8)))
    assert result.too_large and all(one.memory.total > 10e9 for one in result.too_large)
    assert all(one.time.total < 1.02 * result.ranked[0].time.total for one in result.too_large)
    assert any("alone are larger" in reason for reason in result.dropped)


def test_nothing_fits_but_with_the_optimizer_on_the_host() -> None:
    states = 16 * 1.85e9  # bytes of the model on one device, beside activations
    machine = with_memory(0.45 * states / 1e9)
    (first, *_) = found(machine, devices=1).ranked
    assert first.workload.optimizer_offload and first.config.optim.optimizer_cpu_offload
    assert found(dataclasses.replace(machine, host_memory_gb=20.0), devices=1).ranked == (), "16 bytes a parameter"
    nothing = found(with_memory(1.0), devices=1)
    assert nothing.ranked == () and nothing.too_large and nothing.fitting == 0


def test_layouts_become_the_workloads_of_their_configurations() -> None:
    offloaded = dataclasses.replace(RUN, optim=dataclasses.replace(RUN.optim, optimizer_cpu_offload=True))
    for config in (RUN, offloaded):
        for one in found(NODES, config).ranked:
            exact = Workload.of(one.config.resolve(8), 8)
            assert one.workload == exact
            assert exact.recompute == Recompute(granularity=one.layout.recompute)


def test_a_plan_is_of_the_layout_that_is_asked_for() -> None:
    layout = Layout(2, 2, 2, 1, "zero-bubble", 1, "count", True, "full")
    planned = plan(RUN, layout, NODES, Constants())
    assert (planned.workload.tp, planned.workload.schedule) == (2, "zero-bubble")
    assert planned.config.training.micro_batch_size == 1


def test_a_device_without_the_precision_is_told() -> None:
    with pytest.raises(ConfigError, match="no bf16"):
        found(hardware("dgx-2"))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [280, 350, 420])
def test_530b_trains_a_third_faster_than_as_it_was_published(nodes: int) -> None:
    devices, dp = 8 * nodes, nodes // 35
    training = dataclasses.replace(RUN.training, global_batch_size=1920)
    first = found(NODES, dataclasses.replace(RUN, model=MT_NLG, training=training), devices).ranked[0]
    causes = explain(published(dp), first.workload, NODES, Constants())
    print(f"{nodes} nodes: {first.layout.name}, {first.memory.total / 1e9:.1f} GB")
    for cause in causes:
        print(f"{cause.seconds:6.2f} s {cause.gain:+6.1%} {cause.name}")
        assert cause.published is None or abs(cause.gain - cause.published.gain) <= 0.05
    assert StepModel(published(dp), NODES, Constants()).step().total / causes[-1].seconds >= 1.35


@pytest.mark.slow
def test_4096_devices() -> None:
    """A trillion parameters: the layouts are so many that pricing each by playing it would take an hour."""
    model = dataclasses.replace(RUN.model, num_layers=128, hidden_size=25600, num_attention_heads=160)
    config = dataclasses.replace(RUN, model=model, training=dataclasses.replace(RUN.training, global_batch_size=3072))
    first = found(NODES, config, devices=4096).ranked[0]
    assert first.layout.tp * first.layout.pp * first.layout.dp == 4096
    assert first.memory.total <= 84.9e9
