# SPDX-License-Identifier: Apache-2.0
"""Recomputation: the same bits, the activations that theory says, and no product more than backward needs."""

import gc
import math
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_core.config.model import ModelConfig
from megatron_core.model.gpt import ChunkPlan, GPTChunk
from megatron_core.model.recompute import recomputed
from megatron_core.model.recompute_plan import RecomputePlan
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel import linear
from tests.rank_pool import ranks
from tests.small_model import (
    ALONE,
    KEY,
    assert_same_bits,
    make_factory,
    make_microbatch,
    make_model,
    outcome,
    randn,
    small,
)

NOTHING = RecomputePlan()
FULL = RecomputePlan(method="uniform")
FORMS = {
    "full": FULL,
    "full-by-3": RecomputePlan(method="uniform", num_layers=3),
    "first-2": RecomputePlan(method="block", num_layers=2),
    "core_attn": RecomputePlan(modules=frozenset({"core_attn"})),
    "mlp": RecomputePlan(modules=frozenset({"mlp"})),
    "layernorm": RecomputePlan(modules=frozenset({"layernorm"})),
    "all-modules": RecomputePlan(modules=frozenset({"core_attn", "mlp", "layernorm"})),
}
LLAMA = {
    "normalization": "RMSNorm",
    "swiglu": True,
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "qk_layernorm": True,
    "group_query_attention": True,
    "num_query_groups": 2,
}
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}


def build(plan: RecomputePlan, config: ModelConfig, ctx: ParallelContext = ALONE, **options: Any) -> GPTChunk:
    return make_model(replace(make_factory(config, ctx, **options), recompute=plan))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("changes", [{}, DROPOUT, LLAMA], ids=["gpt2", "dropout", "llama"])
def test_every_form_gives_the_same_bits(form: str, changes: dict[str, Any]) -> None:
    config = small(num_layers=4, **changes)
    assert_same_bits(outcome(build(FORMS[form], config), config), outcome(build(NOTHING, config), config))


@pytest.mark.parametrize("form", ["full", "all-modules"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@ranks({"tp": 2})
def test_over_tensor_parallel_ranks_too(ctx: ParallelContext, form: str, sequence_parallel: bool) -> None:
    config = small(**DROPOUT)
    plain, again = (build(plan, config, ctx, sequence_parallel=sequence_parallel) for plan in (NOTHING, FORMS[form]))
    assert_same_bits(outcome(again, config, ctx), outcome(plain, config, ctx))


class Live(TorchDispatchMode):
    """Counts the bytes of all storages that operations make while it is on, for as long as they live."""

    def __init__(self, *known: torch.Tensor) -> None:
        """`known`: tensors that were there before, and may be made views of."""
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._bytes: dict[int, int] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._known | self._bytes.keys():
                    self._bytes[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self._bytes.pop, storage._cdata)
        return out

    @property
    def total(self) -> int:
        return sum(self._bytes.values())


def between(model: GPTChunk, config: ModelConfig, x: torch.Tensor) -> int:
    """Bytes alive between the forward and the backward of a chunk that starts from x, x itself left out."""
    batch = make_microbatch(config, dropout=KEY)
    with Live(x, *model.parameters()) as live:
        output = model(x, batch)
        total = live.total
    del output
    return total


LINEARS = ("attention.q", "attention.kv", "attention.output", "mlp.up", "mlp.down")
INNER = ChunkPlan(range(4), has_embedding=False, has_head=False)


@pytest.mark.parametrize("layers_a_group", [1, 2, 3])
def test_full_keeps_one_input_a_group(layers_a_group: int) -> None:
    """[s, b, h] each. The first group's input is not made here, but the chunk's output is."""
    config = small(num_layers=4, **DROPOUT)
    plan = RecomputePlan(method="uniform", num_layers=layers_a_group)
    x = randn(16, 2, 32).requires_grad_()
    kept = between(make_model(replace(make_factory(config), recompute=plan), INNER), config, x)
    assert kept == math.ceil(4 / layers_a_group) * x.nbytes


@pytest.mark.parametrize("form", ["full", "all-modules"])
def test_an_input_action_runs_again_and_a_weight_action_finds_its_inputs(form: str) -> None:
    """Zero-bubble schedules: no product of a second run waits for W, and no gradient is added twice or before W."""
    config = small(num_layers=4, **DROPOUT)
    counts: list[Counter[str]] = []
    sums = []
    for plan in (NOTHING, FORMS[form]):
        factory = replace(make_factory(config), recompute=plan)
        model, counted = make_model(factory, INNER), Counter[str]()
        for parameter in model.parameters():
            parameter.main_grad = torch.zeros_like(parameter)
            parameter.on_gradient = lambda parameter, counted=counted: counted.update([parameter.spec.name])
        loss = model(randn(16, 2, 32).requires_grad_(), make_microbatch(config, dropout=KEY)).square().mean()
        with factory.queue.deferred() as pending:
            loss.backward()
        assert not counted
        with torch.no_grad():
            assert calls_of("linear", lambda pending=pending: [closure() for closure in pending]) == 0
        counts.append(counted)
        sums.append({parameter.spec.name: parameter.main_grad for parameter in model.parameters()})
    assert counts[1] == counts[0] == {f"layers.{n}.{name}.weight": 1 for n in range(4) for name in LINEARS}
    assert_same_bits(sums[1], sums[0])


@pytest.mark.parametrize("sequence_parallel", [False, True])
@ranks({"tp": 2})
def test_the_inputs_kept_are_the_sharded_ones(ctx: ParallelContext, sequence_parallel: bool) -> None:
    """Whatever autograd is given to keep: nothing but [s/tp, b, h] under sequence parallelism, else [s, b, h]."""
    config = small(num_layers=4, **DROPOUT)
    factory = make_factory(config, ctx, sequence_parallel=sequence_parallel)
    model = make_model(replace(factory, recompute=FULL), INNER)
    shape = (16 // ctx.tp.size if sequence_parallel else 16, 2, 32)
    saved = []
    with saved_tensors_hooks(lambda tensor: saved.append(tensor.shape), lambda packed: None):
        model(randn(*shape).requires_grad_(), make_microbatch(config, dropout=KEY))
    assert saved == [shape] * 4


def per_layer(plan: RecomputePlan, config: ModelConfig) -> float:
    """Kept by one layer, in units of [s, b, h]."""
    x = randn(16, 2, 32).requires_grad_()
    one, two = (
        between(
            make_model(replace(make_factory(config), recompute=plan), ChunkPlan(range(count), False, False)), config, x
        )
        for count in (1, 2)
    )
    return (two - one) / x.nbytes


def test_modules_leave_out_what_is_theirs() -> None:
    """A layer keeps the inputs of two norms (2), their outputs (2), q, k, v and the core's output (4), the MLP's width
    before and after GELU (8); beside them 4 / h for the norms' statistics and a / h for SDPA's sums."""
    config = small()
    statistics, sums = 4 / 32, 4 / 32
    assert per_layer(NOTHING, config) == 16 + statistics + sums
    for modules, left in (({"layernorm"}, 14), ({"mlp"}, 8), ({"mlp", "layernorm"}, 6)):
        assert per_layer(RecomputePlan(modules=frozenset(modules)), config) == left + statistics + sums, modules


def test_the_core_keeps_no_scores() -> None:
    """With attention dropout they are formed, a s / h units each."""
    config, scores = small(attention_dropout=0.1), 4 * 16 / 32
    left = per_layer(RecomputePlan(modules=frozenset({"core_attn"})), config)
    assert left == 16 + 4 / 32
    assert per_layer(NOTHING, config) >= left + 2 * scores


def calls_of(name: str, action: Callable[[], object]) -> int:
    with patch.object(linear, name, wraps=getattr(linear, name)) as spy:
        action()
    return spy.call_count


@pytest.mark.parametrize(("form", "again"), [("full", 4), ("mlp", 1), ("core_attn", 0), ("layernorm", 0)])
def test_no_product_is_repeated_that_backward_does_not_need(form: str, again: int) -> None:
    """Of a layer's five products (q, kv, output, up, down) nothing waits for the one at the end of a stretch."""
    config = small()
    losses = build(FORMS[form], config)(None, make_microbatch(config))
    repeated = calls_of("linear", losses.mean().backward)
    assert repeated == again * config.num_layers


@ranks({"tp": 2})
def test_nor_is_the_reduction_behind_it(ctx: ParallelContext) -> None:
    config = small()
    losses = build(FULL, config, ctx)(None, make_microbatch(config))
    assert calls_of("all_reduce", losses.mean().backward) == config.num_layers


def test_a_second_run_happens_once_and_only_in_backward() -> None:
    runs = []

    def twice(x: torch.Tensor, factor: float) -> torch.Tensor:
        runs.append(torch.is_grad_enabled())
        return (x * factor).sin().cos()

    x = randn(3).requires_grad_()
    with torch.no_grad():
        recomputed(twice, x, 2.0)
    assert runs == [False]
    y = recomputed(twice, x, 2.0)
    assert runs == [False, True]
    y.sum().backward()
    assert runs == [False, True, True]
    expected = torch.autograd.grad((x * 2.0).sin().cos().sum(), x)[0]
    assert torch.equal(x.grad, expected)


def test_backward_a_second_time_is_a_bug() -> None:
    y = recomputed(lambda x: x.sin(), randn(3).requires_grad_()).sum()
    y.backward(retain_graph=True)
    with pytest.raises(AssertionError, match="backward ran twice"):
        y.backward()


def test_a_function_that_does_something_else_the_second_time_is_a_bug() -> None:
    def shorter(x: torch.Tensor, steps: list[int]) -> torch.Tensor:
        for _ in range(steps.pop()):
            x = x.sin()
        return x

    y = recomputed(shorter, randn(3).requires_grad_(), [1, 2]).sum()
    with pytest.raises(AssertionError, match="the second run saved 1 tensors, the first one 2"):
        y.backward()


def test_an_error_in_the_second_run_is_told() -> None:
    def fails(x: torch.Tensor, calls: list[int]) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("out of luck")
        return x.sin()

    y = recomputed(fails, randn(3).requires_grad_(), []).sum()
    with pytest.raises(ValueError, match="out of luck"):
        y.backward()


def test_nothing_is_left_after_backward() -> None:
    config = small(num_layers=4)
    model = make_model(replace(make_factory(config), recompute=FULL), INNER)
    x = randn(16, 2, 32).requires_grad_()
    batch, leaves = make_microbatch(config), [x, *model.parameters()]
    model(x, batch).sum().backward()  # what is made once a process must not count
    gc.disable()  # no cycle may wait for the collector
    try:
        with Live(*leaves, *(leaf.grad for leaf in leaves)) as live:
            model(x, batch).sum().backward()
            assert live.total == 0
    finally:
        gc.enable()


def bytes_of_gradients(model: GPTChunk) -> int:
    return sum(parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("form", [None, "full", "all-modules"])
def test_backward_lets_go_of_what_it_has_used(form: str | None) -> None:
    """Layer by layer, though the graph as a whole lives until the end: when the input's gradient comes, the weights'
    gradients are all that is left, and some working memory of the first layer."""
    config = small(num_layers=4)
    plan = FORMS[form] if form else NOTHING
    model = make_model(replace(make_factory(config), recompute=plan), INNER)
    x = randn(16, 2, 32).requires_grad_()
    left = []
    with Live(x, *model.parameters()) as live:
        x.register_hook(lambda grad: left.append(live.total - bytes_of_gradients(model)))
        loss = model(x, make_microbatch(config)).sum()
        loss.backward()
    assert left[0] < 4 * x.nbytes
