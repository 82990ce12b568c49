# SPDX-License-Identifier: Apache-2.0
"""What a parameter is, whatever the layout: its global name and shape, and which slice of it this rank holds.

Every tensor-parallel cut is one contiguous slice along one dim. Initialisation, gradient reduction, norms, checkpoints
and tests read all they need from this record; nothing else knows how a layer was cut.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from megatron_core.parallel.context import Group, ParallelContext


@dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """One parameter as one rank holds it."""

    name: str
    """Global name, with global layer numbers: layers.17.attention.q.weight."""
    shape: tuple[int, ...]
    """Global shape, with the true vocabulary."""
    dim: int | None = None
    """The dim cut over tp; None: every tp rank holds the whole tensor."""
    start: int = 0
    """First index along `dim` that this rank holds."""
    stop: int = 0
    """One past the last index along `dim`; local rows beyond stop - start are vocabulary padding."""
    counted: bool = True
    """Whether this rank is the one that counts these elements in sums over the model (norms, zero counts, saving)."""
    partial: str | None = None
    """Name of the group over which each rank's gradient is only a part of the sum; None: it is complete."""
    tied: bool = False
    """Held by the first and the last stage, whose gradients must be added (group `tied`)."""
    decayed: bool = True
    """Whether weight decay applies: not to norms and biases."""
    gradients: int = 1
    """Gradient contributions of one microbatch: a tied weight on a single stage gets two."""

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the slice, vocabulary padding not counted."""
        if self.dim is None:
            return self.shape
        return (*self.shape[: self.dim], self.stop - self.start, *self.shape[self.dim + 1 :])

    def take(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's slice of the global tensor, as a view."""
        return whole if self.dim is None else whole.narrow(self.dim, self.start, self.stop - self.start)

    def real(self, local: torch.Tensor) -> torch.Tensor:
        """The local tensor without its padding rows, as a view."""
        return local if self.dim is None else local.narrow(self.dim, 0, self.stop - self.start)


def even_slice(length: int, group: Group) -> tuple[int, int]:
    """This member's [start, stop) of `length` things, which must divide evenly."""
    assert length % group.size == 0, f"{length} cannot be cut evenly over {group.size} ranks"
    part = length // group.size
    return group.coordinate * part, (group.coordinate + 1) * part


def cut_spec(name: str, shape: tuple[int, ...], dim: int, ctx: ParallelContext, *, decayed: bool = True) -> ShardSpec:
    """Spec of a parameter cut evenly along `dim` over tp."""
    start, stop = even_slice(shape[dim], ctx.tp)
    return ShardSpec(name=name, shape=shape, dim=dim, start=start, stop=stop, decayed=decayed)


def replicated_spec(
    name: str, shape: tuple[int, ...], ctx: ParallelContext, *, partial: bool = False, decayed: bool = False
) -> ShardSpec:
    """Spec of a parameter that every tp rank holds whole; `partial`: each rank sees only a part of its gradient."""
    return ShardSpec(
        name=name,
        shape=shape,
        counted=ctx.tp.coordinate == 0,
        partial="tp" if partial and ctx.tp.size > 1 else None,
        decayed=decayed,
    )


class SpecParameter(nn.Parameter):
    """A parameter that carries its ShardSpec and, once gradient buckets exist, its accumulator `main_grad`."""

    spec: ShardSpec
    accumulator: Callable[[], torch.Tensor] | None = None
    """Gives `main_grad`, which a bucket may not have before the first contribution comes."""
    on_gradient: Callable[["SpecParameter"], None] | None = None

    @property
    def main_grad(self) -> torch.Tensor | None:
        """What gradients of this parameter are added to, in its shape; None outside a training run."""
        return None if self.accumulator is None else self.accumulator()

    @main_grad.setter
    def main_grad(self, memory: torch.Tensor) -> None:
        self.accumulator = lambda: memory

    def gradient_ready(self) -> None:
        """Tell the gradient bucket that one contribution has been added to `main_grad`."""
        if self.on_gradient is not None:
            self.on_gradient(self)


def make_parameter(data: torch.Tensor, spec: ShardSpec) -> SpecParameter:
    """Wrap `data` (local shape, vocabulary padding included) as a trainable parameter with its spec."""
    parameter = SpecParameter(data)
    if not isinstance(parameter, SpecParameter):  # nn.Parameter leaves a subclass of Tensor its own class
        parameter.__class__ = _both(type(parameter))
    parameter.spec = spec
    return parameter


@cache
def _both(kind: type) -> type:
    """A parameter's class whose tensors are of another kind: fake ones, in a dry run."""
    return type(f"Spec{kind.__name__}", (SpecParameter, kind), {})


def spec_parameters(module: nn.Module) -> Iterator[SpecParameter]:
    """All parameters of a module in order of declaration; one without a spec is a bug."""
    for name, parameter in module.named_parameters():
        assert isinstance(parameter, SpecParameter), f"parameter {name} has no ShardSpec"
        yield parameter
