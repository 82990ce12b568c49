# SPDX-License-Identifier: Apache-2.0
"""Which sample numbers a data-parallel rank reads, and when.

Batch k of a run is the numbers [consumed, consumed + global batch), whatever the layout. Microbatch m of data-parallel
coordinate r is the b numbers from consumed + (m·dp + r)·b on. With the number of samples consumed, that is all the
state there is: any run continues at any layout.
"""

from collections.abc import Iterator

PADDING = -1
"""Stands for a sample without targets."""

StepPlan = tuple[tuple[int, ...], ...]
"""Sample numbers of each microbatch of one step on one data-parallel coordinate."""


def training_step(
    consumed: int, *, global_batch_size: int, micro_batch_size: int, dp_size: int, dp_coordinate: int
) -> StepPlan:
    """Sample numbers of one training step, after `consumed` samples of the run."""
    microbatches, rest = divmod(global_batch_size, micro_batch_size * dp_size)
    assert rest == 0, f"a batch of {global_batch_size} does not divide into {dp_size} x {micro_batch_size}"
    return _plan(consumed, microbatches, micro_batch_size, dp_size, dp_coordinate)


def validation_steps(
    num_samples: int, *, global_batch_size: int, micro_batch_size: int, dp_size: int, dp_coordinate: int
) -> Iterator[StepPlan]:
    """Steps that read each of `num_samples` samples once.

    The last step is as short as it can be with all ranks having equally many microbatches; PADDING fills it up.
    """
    assert global_batch_size % (micro_batch_size * dp_size) == 0, (
        f"batch {global_batch_size}, {dp_size} x {micro_batch_size}"
    )
    for first in range(0, num_samples, global_batch_size):
        here = min(global_batch_size, num_samples - first)
        microbatches = -(-here // (micro_batch_size * dp_size))
        plan = _plan(first, microbatches, micro_batch_size, dp_size, dp_coordinate)
        yield tuple(tuple(n if n < num_samples else PADDING for n in numbers) for numbers in plan)


def _plan(first: int, microbatches: int, micro_batch_size: int, dp_size: int, dp_coordinate: int) -> StepPlan:
    starts = [first + (m * dp_size + dp_coordinate) * micro_batch_size for m in range(microbatches)]
    return tuple(tuple(range(start, start + micro_batch_size)) for start in starts)
