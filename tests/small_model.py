# SPDX-License-Identifier: Apache-2.0
"""A GPT small enough for unit tests, its microbatches, and global tensors put together from shards."""

from dataclasses import replace
from typing import Any

import torch

from megatron_core.config.model import ModelConfig
from megatron_core.kernels.dropout import DropoutKey
from megatron_core.model.gpt import ChunkPlan, GPTChunk, build_chunks
from megatron_core.model.microbatch import Microbatch
from megatron_core.model.parameters import ParameterFactory
from megatron_core.parallel.collectives import all_reduce
from megatron_core.parallel.context import ParallelContext, single_process_context
from megatron_core.tensor_parallel.shard_spec import ShardSpec, SpecParameter, spec_parameters
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue

SMALL = ModelConfig(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    seq_length=16,
    max_position_embeddings=16,
    vocab_size=37,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
ALONE = single_process_context()
SEED = 1234
KEY = DropoutKey(1, 0, (0, 1))
"""Of the dropout of `outcome`."""


def small(**changes: Any) -> ModelConfig:
    """The small config with some fields changed."""
    return replace(SMALL, **changes)


def make_factory(
    config: ModelConfig = SMALL,
    ctx: ParallelContext = ALONE,
    *,
    sequence_parallel: bool = False,
    dtype: torch.dtype = torch.float64,
) -> ParameterFactory:
    """A factory in float64 with the tests' seed."""
    return ParameterFactory(config, ctx, WeightGradientQueue(), SEED, dtype, sequence_parallel and ctx.tp.size > 1)


def make_model(factory: ParameterFactory, plan: ChunkPlan | None = None) -> GPTChunk:
    """The whole model, or one chunk."""
    return build_chunks(factory, [plan or ChunkPlan(range(factory.config.num_layers))])[0]


def make_microbatch(
    config: ModelConfig = SMALL, b: int = 2, *, seed: int = 0, dropout: DropoutKey | None = None
) -> Microbatch:
    """b samples of random tokens; labels are the tokens that follow."""
    ids = torch.randint(config.vocabulary, (b, config.seq_length + 1), generator=torch.Generator().manual_seed(seed))
    positions = torch.arange(config.seq_length).unsqueeze(0)
    return Microbatch(position_ids=positions, tokens=ids[:, :-1], labels=ids[:, 1:], dropout=dropout)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers in float64, the same on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gathered(local: torch.Tensor, spec: ShardSpec, ctx: ParallelContext) -> torch.Tensor:
    """The global tensor from every tp rank's slice, exact to the bit."""
    whole = local.new_zeros(spec.shape)
    if spec.counted:
        spec.take(whole).copy_(spec.real(local))
    return all_reduce(whole, ctx.tp)


def gathered_weights(model: torch.nn.Module, ctx: ParallelContext) -> dict[str, torch.Tensor]:
    """Global weights by name."""
    return {p.spec.name: gathered(p.detach(), p.spec, ctx) for p in spec_parameters(model)}


def gathered_gradients(model: torch.nn.Module, ctx: ParallelContext) -> dict[str, torch.Tensor]:
    """Global gradients by name, partial ones summed over their group first."""
    return {p.spec.name: gathered(_gradient(p, ctx), p.spec, ctx) for p in spec_parameters(model)}


def _gradient(parameter: SpecParameter, ctx: ParallelContext) -> torch.Tensor:
    assert parameter.grad is not None, f"{parameter.spec.name} has no gradient"
    grad = parameter.grad.clone()
    return grad if parameter.spec.partial is None else all_reduce(grad, ctx.group(parameter.spec.partial))


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-10) -> None:
    """Equal names, and per tensor max|a - b| <= tolerance * max|expected| + tolerance / 100."""
    assert got.keys() == expected.keys()
    for name, reference in expected.items():
        gap = (got[name] - reference).abs().max().item()
        limit = tolerance * reference.abs().max().item() + tolerance / 100
        assert gap <= limit, f"{name} differs by {gap:.3g}, allowed {limit:.3g}"


def outcome(model: GPTChunk, config: ModelConfig, ctx: ParallelContext = ALONE) -> dict[str, torch.Tensor]:
    """Losses of a microbatch with dropout and all gradients of their mean."""
    losses = model(None, make_microbatch(config, dropout=KEY))
    losses.mean().backward()
    return {"losses": losses.detach(), **gathered_gradients(model, ctx)}


def assert_same_bits(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """The same tensors, to the bit."""
    assert got.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(got[name], expected[name])] == []
