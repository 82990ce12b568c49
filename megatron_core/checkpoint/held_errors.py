# SPDX-License-Identifier: Apache-2.0
"""The errors of 1-bit Adam's compression as tensors of a checkpoint, beside those that every optimizer has.

Names: "onebit_worker/<parameter>" [dp, ...], of which each dp rank holds its own row, and "onebit_server/<parameter>"
[...], of which each holds the range that it serves. A run reads back what was saved at its dp; what the workers of
another dp have lost is nobody's, and those of the run start with none.
"""

import math
from collections.abc import Iterator, Sequence

import torch

from megatron_core.checkpoint.held import Held, held_tensors, spec_rectangle
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.rectangle import Rectangle, flat_range_to_rectangles
from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.optim.onebit_adam import OneBitAdam
from megatron_core.optim.onebit_compress import Errors
from megatron_core.optim.optimizer import Optimizer
from megatron_core.tensor_parallel.shard_spec import ShardSpec

_WORKER, _SERVER = "onebit_worker", "onebit_server"


def held_with_errors(buckets: Sequence[FlatBucket], optimizer: Optimizer, *, with_optim: bool) -> list[Held]:
    """What `held_tensors` lists and, of 1-bit Adam with `with_optim`, this rank's errors."""
    held = held_tensors(buckets, optimizer, with_optim=with_optim)
    if with_optim and isinstance(optimizer, OneBitAdam):
        for bucket, errors in zip(buckets, optimizer.errors, strict=True):
            held += [*_worker(bucket, errors), *_server(bucket, errors)]
    return held


def has_no_place_in(manifest: Manifest, held: Held) -> bool:
    """Whether these are errors that a checkpoint does not have: from before the freeze, or of another dp."""
    if not held.name.startswith((_WORKER, _SERVER)):
        return False
    return all(entry.shape != held.shape for entry in manifest.tensors if entry.name == held.name)


def lost_errors(manifest: Manifest, held: Sequence[Held]) -> str | None:
    """What to say where a run goes on from the errors of another dp."""
    own = next((tensor.shape[0] for tensor in held if tensor.name.startswith(_WORKER)), None)
    saved = next((entry.shape[0] for entry in manifest.tensors if entry.name.startswith(_WORKER)), None)
    if own is None or saved is None or own == saved:
        return None
    return f"1-bit Adam's worker errors in the checkpoint are those of dp {saved}; at dp {own} they start at zero"


def _worker(bucket: FlatBucket, errors: Errors) -> Iterator[Held]:
    for spec, local in bucket.views(errors.worker):
        inner = spec_rectangle(spec)
        row = errors.coordinate
        rectangle = Rectangle((row, *inner.start), (row + 1, *inner.stop))
        if rectangle.volume:
            yield _held(_WORKER, spec, (errors.size, *spec.shape), rectangle, spec.real(local).unsqueeze(0))


def _server(bucket: FlatBucket, errors: Errors) -> Iterator[Held]:
    for slot, parameter in zip(bucket.slots, bucket.parameters):
        spec = parameter.spec
        start, stop = max(slot.start, errors.start), min(slot.stop, errors.start + len(errors.server))
        # Vocabulary padding is at the end of a rank's slice.
        first, last = start - slot.start, min(stop - slot.start, math.prod(spec.local_shape))
        if first >= last:
            continue
        for part in flat_range_to_rectangles(spec.local_shape, first, last):
            values = errors.server[start - errors.start :][: part.volume].view(part.shape)
            yield _held(_SERVER, spec, spec.shape, part.shifted(spec_rectangle(spec).start), values)
            start += part.volume


def _held(section: str, spec: ShardSpec, shape: tuple[int, ...], rectangle: Rectangle, values: torch.Tensor) -> Held:
    return Held(
        name=f"{section}/{spec.name}",
        shape=shape,
        rectangle=rectangle,
        values=values,
        counted=spec.counted,
        replicated=False,
    )
