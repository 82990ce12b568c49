# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint as one rank holds them: what is saved from, and what is loaded into.

Names: "model/<parameter>" for weights, "adam_m/…" and "adam_v/…" for Adam's moments, "master/…" for the fp32 masters of
16-bit weights. A layout shows only in the rectangles.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.optim.mixed_precision import MixedPrecisionAdamW
from megatron_core.tensor_parallel.shard_spec import ShardSpec


@dataclass(frozen=True, kw_only=True)
class Held:
    """One tensor as this rank holds it."""

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


def held_tensors(buckets: Sequence[FlatBucket], optimizer: MixedPrecisionAdamW, *, with_optim: bool) -> list[Held]:
    """Everything that this rank holds, the weights alone without `with_optim`; in one order on all dp replicas."""
    found: list[Held] = []
    for bucket, state in zip(buckets, optimizer.states, strict=True):
        assert state.bucket is bucket, "the optimizer has other buckets, or the same in another order"
        sections = {"model": bucket.weights}
        if with_optim:
            sections |= {"adam_m": state.moments.m, "adam_v": state.moments.v}
            if state.master is not bucket.weights:
                sections["master"] = state.master
        for section, flat in sections.items():
            found += [_held(section, spec, local) for spec, local in bucket.views(flat) if spec_rectangle(spec).volume]
    return found


def spec_rectangle(spec: ShardSpec) -> Rectangle:
    """Where a rank's slice of a parameter lies; empty where the rank holds nothing but vocabulary padding."""
    everything = whole(spec.shape)
    return everything if spec.dim is None else everything.rows(spec.dim, spec.start, spec.stop)


def _held(section: str, spec: ShardSpec, local: torch.Tensor) -> Held:
    return Held(
        name=f"{section}/{spec.name}",
        shape=spec.shape,
        rectangle=spec_rectangle(spec),
        values=spec.real(local),
        counted=spec.counted,
    )
