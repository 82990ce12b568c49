# SPDX-License-Identifier: Apache-2.0
"""The few numbers of the time model that no data sheet has, each with its physical meaning.

They were fitted by `fit.fit` on the 33 rows that are published for calibration (Megatron-LM's README of 2020 on V100
and A100, figures 11, 13 and 16 of Narayanan et al. 2021), and on nothing else; `tools/plan.py fit` repeats it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Shares of peaks, and times that do not shrink with the work."""

    matmul_share: float = 0.737
    """Of the peak, what a product reaches whose tiles fill all multiprocessors."""
    memory_share: float = 0.836
    """Of the memory's bandwidth, what elementwise kernels reach."""
    node_link_share: float = 0.708
    """Of the links inside a node, what rings reach with long messages."""
    network_share: float = 0.847
    """The same of the network."""
    kernel_s: float = 3.76e-6
    """Beginning and end of a kernel, during which the device does nothing."""
    wave_s: float = 1.65e-6
    """Beginning and end of a wave of tiles: filling the pipeline of loads, writing results."""
    hop_s: float = 6.54e-6
    """One hop of a collective, beside its bytes."""
    overlap_cost: float = 0.55
    """Of communication that runs beside kernels, what these are slowed down by."""


MEASURED = Constants(
    matmul_share=1.0,
    memory_share=1.0,
    node_link_share=1.0,
    network_share=1.0,
    kernel_s=0.0,
    wave_s=0.0,
    hop_s=0.0,
    overlap_cost=1.0,
)
"""Of a device whose operators were measured: all of it is in the measurements, and cores hide nothing."""
