# SPDX-License-Identifier: Apache-2.0
"""The update: precision, AdamW, clipping, and the schedules of learning rate and weight decay."""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp64", "fp32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Everything that turns gradients into new weights."""

    optimizer: Literal["adam", "onebit-adam"] = "adam"
    """AdamW: decoupled weight decay, none on norms and biases. onebit-adam: the same until --onebit-freeze-step, then
    with a fixed variance and momentum exchanged over data parallelism in one bit an element: for slow networks."""
    onebit_freeze_step: int | None = None
    """Updates before 1-bit Adam's variance is fixed and compression starts (required with it): 15-25 % of the run, and
    not before the end of the learning rate's warm-up."""
    optimizer_cpu_offload: bool = False
    """Keep masters and moments in the host's memory and update there (ZeRO-Offload)."""
    offload_gradients: Literal["auto", "device", "host"] = "auto"
    """Where gradients accumulate with --optimizer-cpu-offload. host: those of each microbatch leave the device during
    backward, so that it keeps 2 bytes a parameter and a pool of two buckets, and are reduced over dp each time. auto:
    host without a pipeline, device with one."""
    optimizer_delayed_update_start: int | None = None
    """Updates after which each one is made on the host during the forward and backward of the step that follows, a step
    late (with --optimizer-cpu-offload). Unset: never, and nothing is late."""
    optimizer_offload_directory: str | None = None
    """Put them in a file of this directory, on a fast disk, instead of memory (with --optimizer-cpu-offload)."""
    lr: float = 0.0
    """Peak learning rate (required)."""
    min_lr: float = 0.0
    """Floor of the learning rate after decay."""
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "linear"
    """Shape of the decay."""
    lr_decay_iters: int | None = None
    """Steps until min_lr. Unset: train_iters."""
    lr_decay_samples: int | None = None
    """The same in samples. Unset: train_samples."""
    lr_warmup_fraction: float | None = None
    """Warm-up as a share of the decay length."""
    lr_warmup_iters: int = 0
    """Steps of linear warm-up."""
    lr_warmup_samples: int = 0
    """Samples of linear warm-up (with --train-samples)."""
    lr_warmup_init: float = 0.0
    """Learning rate at the start of warm-up."""
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    """Shape of the last phase of WSD."""
    lr_wsd_decay_iters: int | None = None
    """Steps of the last phase of WSD."""
    lr_wsd_decay_samples: int | None = None
    """The same in samples."""

    adam_beta1: float = 0.9
    """Decay of the first moment."""
    adam_beta2: float = 0.999
    """Decay of the second moment."""
    adam_eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    start_weight_decay: float | None = None
    """Weight decay at the first step (with an increment style other than constant)."""
    end_weight_decay: float | None = None
    """Weight decay at the last step."""
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    """How weight decay moves between the two."""
    clip_grad: float = 1.0
    """Largest global L2 norm of the gradient; 0 turns clipping off."""

    fp16: bool = False
    """fp16 weights and activations, fp32 masters, loss scaling."""
    bf16: bool = False
    """bf16 weights and activations, fp32 masters."""
    fp64: bool = False
    """Everything in double precision: for proofs."""
    loss_scale: float | None = None
    """Fixed loss scale for fp16. Unset: dynamic."""
    initial_loss_scale: float = 2.0**32
    """Where the dynamic loss scale starts."""
    min_loss_scale: float = 1.0
    """Where it stops falling."""
    loss_scale_window: int = 1000
    """Clean steps before it doubles."""
    hysteresis: int = 2
    """Overflows before it halves."""

    @property
    def precision(self) -> Precision:
        """The one precision that the switches name."""
        return "fp64" if self.fp64 else "bf16" if self.bf16 else "fp16" if self.fp16 else "fp32"
