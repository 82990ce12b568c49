# SPDX-License-Identifier: Apache-2.0
"""What a run says about itself, where and how often."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Console, metrics, TensorBoard and Weights & Biases."""

    log_interval: int = 100
    """Steps between console lines (metrics.jsonl has every step)."""
    log_params_norm: bool = False
    """Also report the L2 norm of all weights."""
    log_num_zeros_in_grad: bool = False
    """Also count zero elements of the gradient."""
    log_throughput: bool = False
    """Show TFLOP/s per device on the console (metrics.jsonl always has it)."""
    timing_log_level: int = 0
    """0: step time; 1: phases of the step; 2: the same as 1 (Megatron scripts ask for it)."""
    log_straggler: bool = False
    """Also report the slowest and the fastest rank of each logging window, with their times."""
    log_memory_interval: int | None = None
    """Steps between countings of live bytes by category (parameters, gradients, optimizer, activations, temporary):
    memory_bytes in metrics.jsonl. A step that counts is slower. Unset: none does."""
    plan_hardware: str | None = None
    """After the first steps say what the planner expects of them on this hardware, a name of
    configs/hardware/clusters.yaml or a file, and what was measured."""
    device_peak_tflops: float | None = None
    """Peak of one device for mfu. Unset: known GPUs by name, else mfu is left out."""
    tensorboard_dir: str | None = None
    """Write TensorBoard events here."""
    tensorboard_log_interval: int = 1
    """Steps between TensorBoard points."""
    tensorboard_queue_size: int = 1000
    """Events that TensorBoard may hold back."""
    log_timers_to_tensorboard: bool = False
    """Phase times too, and seconds of communication by axis."""
    log_validation_ppl_to_tensorboard: bool = False
    """Validation perplexity too."""
    log_memory_to_tensorboard: bool = False
    """Peak memory too, and what --log-memory-interval counts."""
    log_world_size_to_tensorboard: bool = False
    """World size too."""
    log_loss_scale_to_tensorboard: bool = True
    """Loss scale too (Megatron: --no-log-loss-scale-to-tensorboard)."""
    wandb_project: str = ""
    """Report to this Weights & Biases project."""
    wandb_entity: str = ""
    """Team that owns it."""
    wandb_exp_name: str = ""
    """Name of the run there."""
    wandb_save_dir: str = ""
    """Where its files go. Empty: <save>/wandb."""
