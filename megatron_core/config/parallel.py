# SPDX-License-Identifier: Apache-2.0
"""The layout: how model, batch and pipeline are cut over ranks. It changes speed and memory, never the numbers."""

from dataclasses import dataclass
from typing import Literal

RECOMPUTE_MODULES = ("core_attn", "mlp", "layernorm")
"""Parts of a layer that can be recomputed by themselves."""

ScheduleName = Literal["auto", "gpipe", "1f1b", "interleaved", "zero-bubble"]


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Sizes of the mesh axes and how the ranks talk."""

    tensor_model_parallel_size: int = 1
    """Ranks tp that share each layer's matrices."""
    pipeline_model_parallel_size: int = 1
    """Stages p of the pipeline."""
    context_parallel_size: int = 1
    """Ranks cp that share a sequence; only 1 so far."""
    sequence_parallel: bool = False
    """Also cut norms, dropout and residuals along the sequence over tp (off by itself at tp = 1)."""
    use_tp_pp_dp_mapping: bool = False
    """Order ranks tp, cp, pp, dp instead of tp, cp, dp, pp."""

    pipeline_schedule: ScheduleName = "auto"
    """auto: 1f1b, or interleaved when virtual stages are asked for."""
    num_layers_per_virtual_pipeline_stage: int | None = None
    """Layers of one chunk; the rank then holds num_layers / p / this chunks."""
    num_virtual_stages_per_pipeline_rank: int | None = None
    """Chunks v a rank holds; the other way to ask for virtual stages."""
    pipeline_split: Literal["count", "cost"] = "count"
    """Give stages equal numbers of layers, or equal cost with embedding and head counted in."""
    decoder_first_pipeline_num_layers: int | None = None
    """Layers on the first pipeline rank."""
    decoder_last_pipeline_num_layers: int | None = None
    """Layers on the last pipeline rank."""
    account_for_embedding_in_pipeline_split: bool = False
    """Count the embedding as one layer when layers are shared out."""
    account_for_loss_in_pipeline_split: bool = False
    """Count the head and loss as one layer when layers are shared out."""

    recompute_granularity: Literal["full", "selective"] | None = None
    """Compute activations again in backward instead of keeping them: full: of whole layers; selective: of parts."""
    recompute_method: Literal["uniform", "block"] | None = None
    """With full. uniform (if unset): all layers, keeping the input of each group; block: the first ones of a chunk."""
    recompute_num_layers: int | None = None
    """uniform: layers a group; block: recomputed layers of each chunk, one by one. Unset: 1."""
    recompute_modules: tuple[str, ...] = ("core_attn",)
    """With selective: core_attn (scores to weighted values), mlp, layernorm (the norms' outputs)."""

    cpu_offloading_num_layers: int = 0
    """Layers of each chunk, its first ones, whose activations wait for backward in the host's memory."""
    min_offloaded_tensor_size: int = 1024 * 1024
    """Elements of the smallest tensor that goes there (with --cpu-offloading-num-layers)."""

    overlap_grad_reduce: bool = False
    """Reduce each gradient bucket while the rest of the last backward still runs."""
    ddp_bucket_size: int | None = None
    """Parameters in one gradient bucket. Unset: max(40 million, 1 million x dp)."""
    use_distributed_optimizer: bool = False
    """Share masters, moments and the update out over the data-parallel ranks (ZeRO-1)."""
    overlap_param_gather: bool = False
    """Gather updated weights behind the next forward (with --use-distributed-optimizer)."""
    grad_reduce_in_bf16: bool = False
    """Accumulate and reduce gradients in bf16 instead of fp32 (with --bf16)."""
    distributed_backend: Literal["auto", "nccl", "gloo"] = "auto"
    """auto: nccl with CUDA, gloo without."""
    distributed_timeout_minutes: float = 10.0
    """Longest a collective may wait before the job ends."""

    @property
    def model_parallel_size(self) -> int:
        """Ranks that hold one copy of the model."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    def virtual_stages(self, num_layers: int) -> int:
        """Chunks v each rank holds (1 without interleaving)."""
        if self.num_virtual_stages_per_pipeline_rank is not None:
            return self.num_virtual_stages_per_pipeline_rank
        if self.num_layers_per_virtual_pipeline_stage is not None:
            return num_layers // self.pipeline_model_parallel_size // self.num_layers_per_virtual_pipeline_stage
        return 1

    def schedule(self, num_layers: int) -> ScheduleName:
        """The schedule's name, with auto resolved."""
        if self.pipeline_schedule != "auto":
            return self.pipeline_schedule
        return "interleaved" if self.virtual_stages(num_layers) > 1 else "1f1b"
