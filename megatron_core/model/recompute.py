# SPDX-License-Identifier: Apache-2.0
"""Activations computed again in backward instead of kept since forward (Chen et al. 2016; Korthikanti et al. 2022).

The graph of the one forward stays; what its nodes would save is left out, and the first of them that asks in backward
has the stretch run again. So every gradient is made once, by the node that always makes it: buckets count as before,
and under zero-bubble schedules the second run belongs to I, while W closures hold the inputs that it made. Dropout
masks are keyed, so no generator has to be wound back. The second run ends at the last tensor needed: the last linear of
a stretch is not repeated, nor its reduction over tp.

torch.utils.checkpoint works alike, but its first use imports the compiler, which takes every rank two seconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch.autograd.graph import saved_tensors_hooks

from megatron_core.tensor_parallel.kept import Kept


class Keeping(Protocol):
    """What becomes of saved tensors between forward and backward: the pair of hooks that autograd is given."""

    def pack(self, tensor: torch.Tensor) -> Any:
        """What is kept in place of a tensor; never None."""

    def unpack(self, packed: Any) -> torch.Tensor:
        """The tensor again."""


class _AsItIs:
    """Nothing: the tensor itself is kept."""

    def pack(self, tensor: torch.Tensor) -> Any:
        # Without its graph, which may hold the node that saves it.
        return tensor.detach()

    def unpack(self, packed: Any) -> torch.Tensor:
        tensor: torch.Tensor = packed
        return tensor


AS_IT_IS: Keeping = _AsItIs()
"""Of all that is neither recomputed nor offloaded."""


def recomputed(function: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    """function(*args), of which backward finds only the tensors among `args`, and makes the rest anew from them.

    `function` must do the same each time; tensors that it takes from elsewhere (parameters, masks) must not change.
    """
    stretch = _Stretch(function, args)
    with saved_tensors_hooks(stretch.number, stretch.take):
        return function(*args)


class _EnoughError(Exception):
    """Ends a second run: all that backward needs has been made."""


class _Stretch:
    """A part of the forward. It lives as long as some node of its graph may still ask for a tensor."""

    def __init__(self, function: Callable[..., torch.Tensor], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = [Kept(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        self._count = 0
        self._made: list[torch.Tensor | None] = []

    def number(self, tensor: torch.Tensor) -> int:
        """What the first run saves instead of its next tensor."""
        self._count += 1
        return self._count - 1

    def take(self, number: int) -> torch.Tensor:
        """That tensor, from the second run, which the first call starts."""
        if not self._made:
            self._run_again()
        made = self._made[number]
        assert made is not None, "backward ran twice through a graph whose activations are recomputed"
        self._made[number] = None
        return made

    def _run_again(self) -> None:
        made = self._made

        def collect(tensor: torch.Tensor) -> None:
            made.append(tensor.detach())
            if len(made) == self._count:
                raise _EnoughError

        args = [_as_leaf(arg.tensor) if isinstance(arg, Kept) else arg for arg in self._args]
        # With gradients on, since only then is anything saved; the graph of this run is thrown away with its output.
        with suppress(_EnoughError), torch.enable_grad(), saved_tensors_hooks(collect, _never):
            self._function(*args)
        assert len(made) == self._count, f"the second run saved {len(made)} tensors, the first one {self._count}"


def _as_leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_(x.requires_grad)


def _never(packed: None) -> torch.Tensor:
    raise AssertionError("there is no backward through a second run")


@contextmanager
def remade(
    output: torch.Tensor,
    function: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    keeping: Keeping = AS_IT_IS,
) -> Iterator[None]:
    """What is saved inside of `output` = function(x) is not kept but made again from x; all else is up to `keeping`.

    Autograd asks the innermost hooks alone, so those around this must be handed on.
    """
    kept, place = Kept(x), _place(output)
    with saved_tensors_hooks(
        lambda saved: None if _place(saved) == place else keeping.pack(saved),
        lambda packed: _again(function, kept) if packed is None else keeping.unpack(packed),
    ):
        yield
    # `output` is alive up to here, so that no other tensor can have had its storage.


def _place(tensor: torch.Tensor) -> tuple[int, int, torch.Size]:
    """Equal for tensors that are the same elements in the same shape; not their address, which fake ones lack."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tensor.shape


def _again(function: Callable[[torch.Tensor], torch.Tensor], kept: Kept) -> torch.Tensor:
    with torch.no_grad():
        return function(kept.tensor)
