# SPDX-License-Identifier: Apache-2.0
"""The errors of 1-bit Adam's compression as tensors of a checkpoint, beside those that every optimizer has.

Names: "onebit_worker/<parameter>" [dp, ...], of which each dp rank holds its own row, and "onebit_server/<parameter>"
[...], of which each holds the range that it serves. A run reads back what was saved at its dp; what the workers of
another dp have lost is nobody's, and those of the run start with none.
"""

from collections.abc import Iterator, Sequence

from megatron_core.checkpoint.held import Held, held_parts, held_tensors, spec_rectangle
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.optim.onebit_adam import OneBitAdam
from megatron_core.optim.onebit_compress import Errors
from megatron_core.optim.optimizer import Optimizer

_WORKER, _SERVER = "onebit_worker", "onebit_server"


def held_with_errors(buckets: Sequence[FlatBucket], optimizer: Optimizer, *, with_optim: bool) -> list[Held]:
    """What `held_tensors` lists and, of 1-bit Adam with `with_optim`, this rank's errors."""
    held = held_tensors(buckets, optimizer, with_optim=with_optim)
    if with_optim and isinstance(optimizer, OneBitAdam):
        for bucket, errors in zip(buckets, optimizer.errors, strict=True):
            held += _worker(bucket, errors)
            for spec, first, served in bucket.range_views(errors.server, errors.start):
                held += held_parts(_SERVER, spec, first, served, replicated=False)
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
            yield Held(
                name=f"{_WORKER}/{spec.name}",
                shape=(errors.size, *spec.shape),
                rectangle=rectangle,
                values=spec.real(local).unsqueeze(0),
                counted=spec.counted,
                replicated=False,
            )
