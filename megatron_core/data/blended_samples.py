# SPDX-License-Identifier: Apache-2.0
"""Training samples of several data sets, mixed as a blend or a curriculum of blends says."""

from dataclasses import dataclass, replace

from megatron_core.data.blend import Blend, BlendCurriculum
from megatron_core.data.sample import Sample, TrainingData


@dataclass(frozen=True)
class BlendedSamples:
    """Sample n is sample i of data set d, where (d, i) = blend.locate(n)."""

    datasets: tuple[TrainingData, ...]
    blend: Blend | BlendCurriculum

    def sample(self, number: int) -> Sample:
        """Sample of that number of the blend."""
        dataset, index = self.blend.locate(number)
        return replace(self.datasets[dataset].sample(index), number=number)

    def source(self, number: int) -> str:
        """Prefix of the data set that gives that sample."""
        dataset, index = self.blend.locate(number)
        return self.datasets[dataset].source(index)
