# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint as one rank holds them: what is saved from, and what is loaded into.

Names: "model/<parameter>" for weights, "adam_m/…" and "adam_v/…" for Adam's moments, "master/…" for the fp32 masters of
16-bit weights. A layout shows only in the rectangles.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from megatron_core.checkpoint.rectangle import Rectangle, flat_range_to_rectangles, whole
from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.optim.delayed_update import DelayedAdamW
from megatron_core.optim.optimizer import Optimizer
from megatron_core.tensor_parallel.shard_spec import ShardSpec


@dataclass(frozen=True, kw_only=True)
class Held:
    """A rectangle of one tensor as this rank holds it."""

    name: str
    """Name in the checkpoint."""
    shape: tuple[int, ...]
    """Global shape, with the true vocabulary."""
    rectangle: Rectangle
    """Where this rank's part lies; never empty."""
    values: torch.Tensor
    """View of the rank's storage, of the rectangle's shape: vocabulary padding is not in it."""
    counted: bool
    """Whether this place of tp x pp is the one that saves it; every dp replica of a place says alike."""
    replicated: bool
    """Whether the other dp replicas of the place hold the same; else it is this one's alone (ZeRO-1)."""
    lags: bool = False
    """Whether these are weights that their masters are ahead of, so that no master stands for them."""


def held_tensors(buckets: Sequence[FlatBucket], optimizer: Optimizer, *, with_optim: bool) -> list[Held]:
    """Everything that this rank holds, the weights alone without `with_optim`.

    What is replicated is listed alike on all dp replicas. The part of an optimizer tensor that a rank owns may be any
    stretch of its elements and is then several rectangles, hence entries, of one name.
    """
    found: list[Held] = []
    lags = with_optim and isinstance(optimizer, DelayedAdamW)
    for bucket, state in zip(buckets, optimizer.states, strict=True):
        assert state.bucket is bucket, "the optimizer has other buckets, or the same in another order"
        for spec, local in bucket.views(bucket.weights):
            parts = held_parts("model", spec, 0, local.reshape(-1), replicated=True)
            found += (replace(part, lags=lags) for part in parts)
        if not with_optim:
            continue
        sections = {"adam_m": state.moments.m, "adam_v": state.moments.v}
        if state.has_master:
            sections["master"] = state.master
        for section, flat in sections.items():
            for spec, first, owned in bucket.owned_views(flat):
                found += held_parts(section, spec, first, owned, replicated=not bucket.sharded)
    return found


def spec_rectangle(spec: ShardSpec) -> Rectangle:
    """Where a rank's slice of a parameter lies; empty where the rank holds nothing but vocabulary padding."""
    everything = whole(spec.shape)
    return everything if spec.dim is None else everything.rows(spec.dim, spec.start, spec.stop)


def held_parts(section: str, spec: ShardSpec, first: int, flat: torch.Tensor, *, replicated: bool) -> list[Held]:
    """Elements of a parameter's slice from number `first` on, as rectangles, but for vocabulary padding at its end."""
    origin = spec_rectangle(spec).start
    end = min(first + len(flat), math.prod(spec.local_shape))
    found = []
    for part in flat_range_to_rectangles(spec.local_shape, min(first, end), end):
        values, flat = flat[: part.volume], flat[part.volume :]
        found.append(
            Held(
                name=f"{section}/{spec.name}",
                shape=spec.shape,
                rectangle=part.shifted(origin),
                values=values.view(part.shape),
                counted=spec.counted,
                replicated=replicated,
            )
        )
    return found
