# SPDX-License-Identifier: Apache-2.0
"""The range of each number by itself, as one table; rules that join several fields are in rules/."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from megatron_core.config.fields import all_fields
from megatron_core.config.run import RunConfig

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}

_RANGES: Mapping[str, str] = {
    ">= 1": """
        num_layers hidden_size num_attention_heads seq_length ffn_hidden_size kv_channels num_query_groups vocab_size
        make_vocab_size_divisible_by padded_vocab_size tensor_model_parallel_size pipeline_model_parallel_size
        context_parallel_size num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank
        ddp_bucket_size micro_batch_size global_batch_size train_iters train_samples eval_interval exit_interval
        lr_decay_iters lr_decay_samples
        lr_wsd_decay_iters lr_wsd_decay_samples loss_scale_window hysteresis log_interval tensorboard_log_interval
        tensorboard_queue_size profile_step_end save_interval save_retain_interval ckpt_step
        check_weight_hash_across_dp_replicas_interval onebit_freeze_step recompute_num_layers log_memory_interval
        min_offloaded_tensor_size eval_tasks_limit
    """,
    ">= 0": """
        max_position_embeddings z_loss_coeff min_lr lr_warmup_iters lr_warmup_samples lr_warmup_init weight_decay
        start_weight_decay end_weight_decay clip_grad num_workers eval_iters seed manual_gc_interval profile_step_start
        profile_ranks rampup_batch_size timing_log_level decoder_first_pipeline_num_layers
        decoder_last_pipeline_num_layers optimizer_delayed_update_start cpu_offloading_num_layers
    """,
    "> 0": """
        norm_epsilon rotary_base rotary_seq_len_interpolation_factor rope_scaling_factor init_method_std
        distributed_timeout_minutes lr adam_eps loss_scale initial_loss_scale min_loss_scale exit_duration_in_mins
        device_peak_tflops
    """,
    ">= 0 and < 1": "hidden_dropout attention_dropout adam_beta1 adam_beta2",
    ">= 0 and <= 1": "embedding_gradient_shrink fim_rate fim_spm_rate lr_warmup_fraction",
    "> 0 and <= 1": "rotary_percent",
    "> 1": "loss_spike_factor",
    "<= 2": "timing_log_level",
    ">= -1": "most_recent_k",
}
"""Bounds -> fields; a field that is None is not bounded, a tuple is bounded element by element."""

REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "micro_batch_size", "lr")
"""Fields whose default is out of range because nobody can choose them for the user."""


@dataclass(frozen=True)
class OutOfRange:
    """A number outside its bounds."""

    field: str
    message: str


def out_of_range(config: RunConfig) -> Iterator[OutOfRange]:
    """Every number outside its bounds."""
    fields = {field.name: field for field in all_fields()}
    for bounds, names in _RANGES.items():
        for name in names.split():
            field = fields[name]
            value = getattr(getattr(config, field.section), name)
            if _within(value, bounds):
                continue
            if name in REQUIRED and value == field.default:
                yield OutOfRange(name, f"--{field.flag} is required")
            else:
                yield OutOfRange(name, f"--{field.flag} is {value}; it must be {bounds}")


def _within(value: float | Sequence[float] | None, bounds: str) -> bool:
    if value is None:
        return True
    if isinstance(value, tuple):
        return all(_within(item, bounds) for item in value)
    assert isinstance(value, (int, float)), f"{value!r} has no range"
    return all(_COMPARE[sign](value, float(limit)) for sign, limit in map(str.split, bounds.split(" and ")))
