# SPDX-License-Identifier: Apache-2.0
"""What it means for each field of a configuration when a run goes on from a checkpoint with another value of it.

Tables only, complete: a field of the sections model, optim, data and training stands in exactly one of them. Layout,
logging and paths (the other sections) never change the numbers.
"""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ARCHITECTURE = _names(
    """
    num_layers hidden_size num_attention_heads ffn_hidden_size kv_channels group_query_attention num_query_groups
    vocab_size normalization norm_epsilon swiglu gelu squared_relu position_embedding_type rotary_base
    rotary_percent rotary_interleaved rotary_seq_len_interpolation_factor use_rope_scaling rope_scaling_factor
    add_bias_linear add_qkv_bias qk_layernorm use_parallel_residual untie_embeddings_and_output_weights embed_layernorm
    """
)
"""The function that the weights were trained for: another value is an error."""

SHAPES = _names("max_position_embeddings")
"""Belongs to the architecture, but counts only where a tensor has that shape, and tensors are compared one by one."""

SCHEDULE = _names(
    """
    lr min_lr lr_decay_style lr_decay_iters lr_decay_samples lr_warmup_fraction lr_warmup_iters lr_warmup_samples
    lr_warmup_init lr_wsd_decay_style lr_wsd_decay_iters lr_wsd_decay_samples weight_decay start_weight_decay
    end_weight_decay weight_decay_incr_style adam_beta1 adam_beta2 adam_eps
    """
)
"""What the optimizer's state goes on under: another value is an error unless one of two switches says which counts."""

RECIPE = _names(
    """
    seq_length hidden_dropout attention_dropout embedding_gradient_shrink z_loss_coeff apply_query_key_layer_scaling
    init_method_std optimizer optimizer_delayed_update_start clip_grad global_batch_size rampup_batch_size
    step_batch_size_schedule data_path train_data_path valid_data_path test_data_path data_args_path
    per_split_data_args_path split validation_sets
    blend_curriculum mock_data tokenizer_type tokenizer_model vocab_file merge_file reset_position_ids
    reset_attention_mask eod_mask_loss fim_rate fim_spm_rate
    """
)
"""May be changed on purpose, and then the curve is another one: said aloud, the run goes on."""

FREE = _names(
    """
    make_vocab_size_divisible_by padded_vocab_size fp16 bf16 fp64 loss_scale initial_loss_scale min_loss_scale
    loss_scale_window hysteresis num_workers dataloader_type micro_batch_size train_iters train_samples
    eval_interval eval_iters full_validation eval_tasks eval_tasks_limit seed onebit_freeze_step optimizer_cpu_offload
    offload_gradients optimizer_offload_directory exit_interval exit_duration_in_mins
    exit_signal_handler kill_switch_path check_for_nan_in_loss_and_grad nan_policy loss_spike_policy loss_spike_factor
    iterations_to_skip check_weight_hash_across_dp_replicas_interval manual_gc manual_gc_interval profile
    profile_step_start profile_step_end profile_ranks
    """
)
"""Nothing is said of these one by one. Seed and freeze step have their own rules, the run's length shows elsewhere."""
