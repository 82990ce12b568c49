# SPDX-License-Identifier: Apache-2.0
"""Offloaded activations: the same bits, each storage once down and once up, and the device's memory free meanwhile."""

import functools
import gc
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from megatron_core.config.model import ModelConfig
from megatron_core.config.parallel import ParallelConfig
from megatron_core.model.activation_offload import ActivationOffload
from megatron_core.model.gpt import ChunkPlan, GPTChunk
from megatron_core.model.recompute_plan import RecomputePlan
from megatron_core.parallel.collectives import Work
from megatron_core.parallel.context import ParallelContext
from megatron_core.parallel.host_copies import Copies, DirectCopies, Wait
from tests.fake_copies import Late
from tests.rank_pool import ranks
from tests.small_model import (
    ALONE,
    KEY,
    assert_same_bits,
    gathered_gradients,
    make_factory,
    make_microbatch,
    make_model,
    outcome,
    randn,
    small,
)

NOTHING = RecomputePlan()
RECOMPUTED = {
    "nothing": NOTHING,
    "full": RecomputePlan(method="uniform"),
    "full-by-2": RecomputePlan(method="uniform", num_layers=2),
    "first-1": RecomputePlan(method="block"),
    "all-modules": RecomputePlan(modules=frozenset({"core_attn", "mlp", "layernorm"})),
}
MODELS = {
    "gpt2": {},
    "dropout": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
    "llama": {
        "normalization": "RMSNorm",
        "swiglu": True,
        "position_embedding_type": "rope",
        "add_bias_linear": False,
        "qk_layernorm": True,
        "group_query_attention": True,
        "num_query_groups": 2,
    },
}


def build(
    offload: ActivationOffload,
    config: ModelConfig,
    ctx: ParallelContext = ALONE,
    *,
    recompute: RecomputePlan = NOTHING,
    chunk: ChunkPlan | None = None,
    sequence_parallel: bool = False,
) -> GPTChunk:
    factory = make_factory(config, ctx, sequence_parallel=sequence_parallel)
    return make_model(replace(factory, recompute=recompute, offload=offload), chunk)


class Counting:
    """Copies at once, and has the bytes of each."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.targets: list[weakref.ref[torch.UntypedStorage]] = []
        self.sources: list[weakref.ref[torch.UntypedStorage]] = []

    def after_device(self) -> None:
        pass

    def after(self, work: Work) -> None:
        work.wait()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Wait:
        self.sizes.append(source.nbytes)
        self.targets.append(weakref.ref(target.untyped_storage()))
        self.sources.append(weakref.ref(source.untyped_storage()))
        target.copy_(source)
        return lambda: None

    def before_device(self) -> None:
        pass


@functools.cache
def kept_outcome(family: str) -> dict[str, torch.Tensor]:
    config = small(num_layers=4, **MODELS[family])
    return outcome(build(ActivationOffload(), config), config)


@pytest.mark.parametrize(
    ("num_layers", "family", "form"),
    [
        *itertools.product([3], ["dropout", "llama"], RECOMPUTED),
        *itertools.product([1, 4], ["gpt2"], ["nothing", "full"]),
    ],
)
def test_the_bits_are_those_of_a_model_that_keeps_all(num_layers: int, family: str, form: str) -> None:
    config = small(num_layers=4, **MODELS[family])
    offload = ActivationOffload(num_layers=num_layers, down=Late(), up=Late())
    assert_same_bits(outcome(build(offload, config, recompute=RECOMPUTED[form]), config), kept_outcome(family))


@pytest.mark.parametrize("sequence_parallel", [False, True])
@ranks({"tp": 2})
def test_over_tensor_parallel_ranks_too(ctx: ParallelContext, sequence_parallel: bool) -> None:
    config = small(**MODELS["dropout"])
    plain, away = (
        build(ActivationOffload(num_layers=n), config, ctx, sequence_parallel=sequence_parallel) for n in (0, 1)
    )
    assert_same_bits(outcome(away, config, ctx), outcome(plain, config, ctx))


INNER = ChunkPlan(range(3), has_embedding=False, has_head=False)


def through(model: GPTChunk, config: ModelConfig, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model(x, make_microbatch(config, dropout=KEY))
    return output


def travelled(
    config: ModelConfig, recompute: RecomputePlan = NOTHING, min_elements: int = 1, num_layers: int = 2
) -> list[int]:
    """Bytes of each copy of a chunk of three layers; what goes down must come up."""
    down, up = Counting(), Counting()
    offload = ActivationOffload(num_layers=num_layers, min_elements=min_elements, down=down, up=up)
    x = randn(16, 2, 32).requires_grad_()
    loss = through(build(offload, config, recompute=recompute, chunk=INNER), config, x).sum()
    assert up.sizes == [], "nothing comes back before backward"
    loss.backward()
    assert sorted(up.sizes) == sorted(down.sizes)
    return down.sizes


def test_a_layer_sends_each_storage_once() -> None:
    """In units of [s, b, h]: norms' inputs 2 and outputs 2, q, k, v and the core's output 4, the MLP's width twice 8,
    beside the norms' statistics and SDPA's sums. q and the two of kv are views, the norms' inputs are saved twice
    where the norms are made again; the chunk's own input stays."""
    unit = 16 * 2 * 32 * 8
    small_ones = 4 * 16 * 2 * 8 + 4 * 16 * 2 * 8
    config = small(num_layers=3)
    assert sum(travelled(config)) == 2 * (16 * unit + small_ones) - unit
    again = travelled(config, RecomputePlan(modules=frozenset({"layernorm"})))
    assert sum(again) == 2 * (14 * unit + small_ones) - unit


def test_small_tensors_stay() -> None:
    elements = 16 * 2 * 32
    assert sum(travelled(small(num_layers=3), min_elements=elements)) == (2 * 16 - 1) * elements * 8
    assert min(travelled(small(num_layers=3), min_elements=elements)) == elements * 8
    assert set(travelled(small(num_layers=3), min_elements=elements + 1)) == {4 * elements * 8, 2 * elements * 8}
    assert travelled(small(num_layers=3), min_elements=10**6) == []


def test_of_recomputed_layers_the_inputs_travel() -> None:
    """But for the chunk's. A group's is that of its first layer."""
    unit = 16 * 2 * 32 * 8
    assert travelled(small(num_layers=3), RECOMPUTED["full"], num_layers=3) == [unit] * 2
    assert travelled(small(num_layers=3), RECOMPUTED["full-by-2"], num_layers=3) == [unit]
    assert travelled(small(num_layers=3), RECOMPUTED["full-by-2"], num_layers=2) == []


def test_neither_parameters_nor_what_outlives_layers_travels() -> None:
    down = Counting()
    config = small(num_layers=3, **MODELS["llama"])
    model = build(ActivationOffload(num_layers=2, down=down), config, chunk=INNER)
    sources: list[torch.UntypedStorage] = []
    shared: list[torch.Tensor] = []

    def look(_: torch.nn.Module, args: Any) -> None:
        x, inputs = args[:2]
        shared.extend((x, inputs.rotary.cos, inputs.rotary.sin, inputs.mask))

    model.layers[0].register_forward_pre_hook(look)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(down, "copy", lambda target, source: sources.append(source.untyped_storage()))
        batch = replace(make_microbatch(config), document_ids=torch.zeros(2, 16, dtype=torch.int64))
        model(randn(16, 2, 32).requires_grad_(), batch)
    stay = {tensor.untyped_storage().data_ptr() for tensor in (*shared, *model.parameters())}
    assert len(sources) > 10 and stay.isdisjoint(storage.data_ptr() for storage in sources)


def test_what_has_left_is_free_and_what_has_come_back_is_freed_node_by_node() -> None:
    down, up = Counting(), Counting()
    config = small(num_layers=3)
    model = build(ActivationOffload(num_layers=2, down=down, up=up), config, chunk=INNER)
    gc.disable()
    try:
        x = randn(16, 2, 32).requires_grad_()
        output = through(model, config, x)
        assert alive(down.sources) == 0, "on the device"
        assert alive(down.targets) == len(down.targets) > 20, "on the host"
        on_device, on_host = [], []

        def look(_: torch.Tensor) -> None:
            on_device.append(alive(up.targets))
            on_host.append(alive(down.targets))

        handle = model.layers[1].mlp.up.weights[0].register_hook(look)
        output.sum().backward()
        handle.remove()
        in_layer_0 = len(up.targets) // 2  # layer 1 has one more, its input
        assert in_layer_0 < on_device[0] < 2 * in_layer_0, "the next is coming, of the present one a part is gone"
        assert on_host[0] == in_layer_0, "what is coming may still be read"
        assert alive(up.targets) == alive(down.targets) == 0
        through(model, config, x)
        assert alive(down.targets) == 0, "a graph that nobody walks back takes its host memory along"
    finally:
        gc.enable()


def alive(storages: Sequence[weakref.ref[torch.UntypedStorage]]) -> int:
    return sum(storage() is not None for storage in storages)


def test_evaluation_moves_nothing() -> None:
    down, config = Counting(), small()
    with torch.no_grad():
        build(ActivationOffload(num_layers=1, down=down), config)(None, make_microbatch(config))
    assert down.sizes == []


class Logged:
    """Copies at once and writes down what it is told, runs of copies as one."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def after_device(self) -> None:
        self._log.append(f"{self._name} after device")

    def after(self, work: Work) -> None:
        work.wait()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Wait:
        target.copy_(source)
        if self._log[-1] != self._name:
            self._log.append(self._name)
        return lambda: None

    def before_device(self) -> None:
        self._log.append(f"device after {self._name}")


def log_of(num_layers: int) -> list[str]:
    log: list[str] = []
    config = small(num_layers=3)
    offload = ActivationOffload(num_layers=num_layers, down=Logged("down", log), up=Logged("up", log))
    model = build(offload, config, chunk=INNER)
    for number, layer in enumerate(model.layers):
        layer.register_forward_pre_hook(lambda *_, number=number: log.append(f"forward {number}"))
        # The gradient of a bias that adds to the layer's output comes first of all its parameters'.
        layer.mlp.down.bias.register_hook(lambda _, number=number: log.append(f"backward {number}"))
    through(model, config, randn(16, 2, 32).requires_grad_()).sum().backward()
    return log


def test_copies_run_beside_the_layer_after_and_in_backward_beside_the_layer_above() -> None:
    assert log_of(2) == [
        "forward 0",
        "down after device",
        "down",
        "forward 1",
        "device after down",
        "down after device",
        "down",
        "forward 2",
        "device after down",
        "up after device",
        "up",
        "backward 2",
        "device after up",
        "up after device",
        "up",
        "backward 1",
        "device after up",
        "backward 0",
    ]


def test_a_last_layer_leaves_and_comes_at_once() -> None:
    log = log_of(3)
    assert log[log.index("forward 2") :] == [
        "forward 2",
        "device after down",
        "down after device",
        "down",
        "device after down",
        "up after device",
        "up",
        "device after up",
        "up after device",
        "up",
        "backward 2",
        "device after up",
        "up after device",
        "up",
        "backward 1",
        "device after up",
        "backward 0",
    ]


@pytest.mark.parametrize("form", ["nothing", "full"])
def test_a_weight_action_finds_its_inputs(form: str) -> None:
    """Zero-bubble schedules: an input action has all come back, its W closures hold what they need."""
    config = small(num_layers=3, **MODELS["dropout"])
    sums = []
    for num_layers in (0, 2):
        factory = make_factory(config)
        offload = ActivationOffload(num_layers=num_layers, down=Late(), up=Late())
        model = make_model(replace(factory, offload=offload, recompute=RECOMPUTED[form]), INNER)
        for parameter in model.parameters():
            parameter.main_grad = torch.zeros_like(parameter)
        loss = through(model, config, randn(16, 2, 32).requires_grad_()).square().mean()
        with factory.queue.deferred() as pending:
            loss.backward()
        with torch.no_grad():
            for closure in pending:
                closure()
        sums.append({parameter.spec.name: parameter.main_grad for parameter in model.parameters()})
    assert_same_bits(sums[1], sums[0])


def test_microbatches_in_flight_do_not_meet() -> None:
    config = small(num_layers=3, **MODELS["dropout"])
    found = []
    for num_layers in (0, 2):
        copies: tuple[Copies, Copies] = (Late(), Late())
        offload = ActivationOffload(num_layers=num_layers, down=copies[0], up=copies[1])
        model = build(offload, config, chunk=INNER)
        inputs = [randn(16, 2, 32, seed=seed).requires_grad_() for seed in range(3)]
        first, second = (through(model, config, x).square().sum() for x in inputs[:2])
        first.backward()
        third = through(model, config, inputs[2]).square().sum()
        second.backward()
        third.backward()
        found.append({str(number): x.grad for number, x in enumerate(inputs)})
    assert_same_bits(found[1], found[0])


def test_of_configs() -> None:
    cpu = torch.device("cpu")
    assert ActivationOffload.of(ParallelConfig(), cpu).num_layers == 0
    config = ParallelConfig(cpu_offloading_num_layers=3, min_offloaded_tensor_size=10)
    offload = ActivationOffload.of(config, cpu)
    assert (offload.num_layers, offload.min_elements) == (3, 10)
    assert isinstance(offload.down, DirectCopies) and isinstance(offload.up, DirectCopies)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    device = torch.device("cuda")
    config: Any = small(num_layers=4, hidden_size=256, seq_length=256, max_position_embeddings=256)
    outcomes = []
    for num_layers in (0, 3):
        settings = ParallelConfig(cpu_offloading_num_layers=num_layers, min_offloaded_tensor_size=1)
        factory = make_factory(config, replace(ALONE, device=device), dtype=torch.bfloat16)
        model = make_model(replace(factory, offload=ActivationOffload.of(settings, device)))
        batch = make_microbatch(config, b=4)
        batch = replace(
            batch,
            position_ids=batch.position_ids.to(device),
            tokens=batch.tokens.to(device),
            labels=batch.labels.to(device),
        )
        model(None, batch).mean().backward()
        outcomes.append(gathered_gradients(model, ALONE))
    assert_same_bits(outcomes[1], outcomes[0])
