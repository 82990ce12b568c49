# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of Megatron-LM, opened: its arguments and its parameters, whatever form and layout it has."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from megatron_core.checkpoint.megatron.arguments import Arguments
from megatron_core.checkpoint.megatron.parameters import HEAD, Parameter
from megatron_core.checkpoint.megatron.sharded import ShardedTensor
from megatron_core.errors import CheckpointError

Assemble = Callable[[Sequence[Parameter]], Mapping[str, ShardedTensor]]
"""Gives the tensor of each of the parameters by name, checked to be whole; and that of HEAD where the checkpoint has a
copy of a tied embedding. Raises CheckpointError where one is missing, is not whole, or something is left over."""


@dataclass(frozen=True, kw_only=True)
class OpenedMegatron:
    """What both forms have in common."""

    origin: str
    """Its path and form."""
    iteration: int
    """0 for a release."""
    arguments: Arguments
    padded_vocab_size: int
    """Rows of its embedding, over all ranks."""
    num_layers: int
    """Layers found, whatever the arguments say."""
    assemble: Assemble
    inert: frozenset[str]
    """Names in its pickles that no checkpoint needs; none was called."""


def require_names(wanted: Iterable[Parameter], found: Iterable[str], origin: str) -> None:
    """Raise CheckpointError unless the parameters found are those wanted; HEAD may be there beside a tied embedding."""
    names, held = {parameter.name for parameter in wanted}, set(found)
    lines = [f"{name} is missing" for name in sorted(names - held)]
    lines += [f"{name} is not in that model" for name in sorted(held - names - {HEAD})]
    if lines:
        more = [f"and {len(lines) - 20} more"] if len(lines) > 20 else []
        head = f"{origin} does not hold the model that its arguments describe:"
        raise CheckpointError("\n  ".join([head, *lines[:20], *more]))
