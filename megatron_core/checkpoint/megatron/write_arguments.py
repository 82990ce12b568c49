# SPDX-License-Identifier: Apache-2.0
"""Our configuration of a model as the arguments that Megatron-LM saves with its weights."""

from argparse import Namespace

import torch

from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.megatron.arguments import SAME
from megatron_core.checkpoint.megatron.target import Target
from megatron_core.config.model import ModelConfig
from megatron_core.errors import ConfigError


def write_arguments(config: ModelConfig, target: Target, manifest: Manifest, dtype: torch.dtype) -> Namespace:
    """What Megatron compares when it loads, and takes with --use-checkpoint-args; `dtype` is that of the weights.

    Raises ConfigError where Megatron-LM has no such model.
    """
    for name in ("embed_layernorm", "use_parallel_residual"):
        if getattr(config, name):
            raise ConfigError(f"{name}: Megatron-LM has no such model")
    exact = config.gelu_form == "exact"
    state = manifest.state
    values = {name: getattr(config, name) for name in SAME}
    values |= {
        "ffn_hidden_size": config.ffn_size,
        "kv_channels": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings or config.seq_length,
        "encoder_seq_length": config.seq_length,
        "encoder_num_layers": config.num_layers,
        "group_query_attention": config.group_query_attention,
        "num_query_groups": config.query_groups,
        "normalization": config.normalization,
        "apply_layernorm_1p": False,
        "layernorm_epsilon": config.norm_epsilon,
        "bias_gelu_fusion": not exact and config.add_bias_linear and not config.swiglu and not config.squared_relu,
        "openai_gelu": config.gelu_form == "tanh" and not config.add_bias_linear,
        "bias_swiglu_fusion": config.swiglu,
        "position_embedding_type": config.position_embedding_type,
        "add_position_embedding": True,
        "use_rotary_position_embeddings": config.position_embedding_type == "rope",
        "vocab_size": config.vocabulary,
        "padded_vocab_size": target.padded_vocab_size(config),
        "tensor_model_parallel_size": target.tensor_model_parallel_size,
        "pipeline_model_parallel_size": target.pipeline_model_parallel_size,
        "num_layers_per_virtual_pipeline_stage": target.num_layers_per_virtual_pipeline_stage,
        "virtual_pipeline_model_parallel_size": _more_than_one(target.num_chunks(config.num_layers)),
        "expert_model_parallel_size": 1,
        "num_experts": None,
        "transformer_impl": "transformer_engine" if target.transformer_engine else "local",
        "params_dtype": dtype,
        "fp16": dtype == torch.float16,
        "bf16": dtype == torch.bfloat16,
        "iteration": manifest.step,
        "consumed_train_samples": state.get("consumed_samples", 0),
        "consumed_valid_samples": 0,
    }
    return Namespace(**values)


def _more_than_one(chunks: int) -> int | None:
    return chunks if chunks > 1 else None
