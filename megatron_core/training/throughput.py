# SPDX-License-Identifier: Apache-2.0
"""From seconds to tokens/s, TFLOP/s per device and model FLOPs utilisation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Speed of one step."""

    tokens_per_s: float
    """All devices together."""
    tflops_per_device: float
    """Model FLOPs, so recomputation does not raise it."""
    mfu: float | None
    """tflops_per_device / peak (PaLM, arXiv:2204.02311, appendix B); None where the peak is not known."""


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """The constants of a run that turn a step's time into rates."""

    seq_length: int
    flops_per_token: int
    """Model FLOPs of forward and backward (`planner.flops`)."""
    num_devices: int
    """Ranks of the run: one device each, with or without CUDA."""
    peak_tflops: float | None = None
    """Dense peak of one device in the run's precision, if known."""

    def rates(self, batch_size: int, step_time_s: float) -> Rates:
        """Rates of a step over `batch_size` sequences that took `step_time_s` seconds."""
        tokens_per_s = batch_size * self.seq_length / step_time_s
        tflops = tokens_per_s * self.flops_per_token / self.num_devices / 1e12
        return Rates(tokens_per_s, tflops, tflops / self.peak_tflops if self.peak_tflops else None)
