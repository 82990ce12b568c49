# SPDX-License-Identifier: Apache-2.0
"""The finite set that one validation reads: from each data set as many samples as asked for, spread evenly, none twice.

It is the same set at every validation, so that losses can be compared along a run.
"""

from dataclasses import dataclass, replace

from megatron_core.data.blend import Blend
from megatron_core.data.sample import Sample, ValidationData


@dataclass(frozen=True)
class SelectedSamples:
    """`counts[d]` ≤ num_samples samples of `datasets[d]`, one data set after the other."""

    datasets: tuple[ValidationData, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        fits = all(0 <= count <= data.num_samples for count, data in zip(self.counts, self.datasets))
        assert len(self.counts) == len(self.datasets) and fits, f"cannot select {self.counts} samples"

    @property
    def num_samples(self) -> int:
        """Samples in all."""
        return sum(self.counts)

    def sample(self, number: int) -> Sample:
        """Sample of that number."""
        data, index = self._locate(number)
        return replace(data.sample(index), number=number)

    def source(self, number: int) -> str:
        """Prefix of the data set that gives that sample."""
        data, index = self._locate(number)
        return data.source(index)

    def _locate(self, number: int) -> tuple[ValidationData, int]:
        index = number
        for data, count in zip(self.datasets, self.counts):
            if index < count:
                return data, index * data.num_samples // count
            index -= count
        raise AssertionError(f"sample {number} of {self.num_samples}")


def select(datasets: tuple[ValidationData, ...], blend: Blend, samples: int | None) -> SelectedSamples:
    """About `samples` samples in the shares of a blend; a set smaller than its share is read once, whole. None: all."""
    sizes = [data.num_samples for data in datasets]
    if samples is None:
        return SelectedSamples(datasets, tuple(sizes))
    return SelectedSamples(datasets, tuple(min(wanted, size) for wanted, size in zip(blend.counts(samples), sizes)))
