# SPDX-License-Identifier: Apache-2.0
"""The families of transformers' models that ours can be, and which of them a model is."""

from megatron_core.checkpoint.huggingface.family import Family
from megatron_core.checkpoint.huggingface.gpt2 import GPT2
from megatron_core.checkpoint.huggingface.gpt_neox import GPT_NEOX
from megatron_core.checkpoint.huggingface.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError, ConfigError

FAMILIES = {family.name: family for family in (GPT2, GPT_NEOX, LLAMA, QWEN2, QWEN3, MISTRAL)}
"""By model_type; where several fit a model, the first is taken."""


def family_of(model_type: str) -> Family:
    """The family that a config.json names. Raises CheckpointError for others."""
    if model_type not in FAMILIES:
        raise CheckpointError(f"model_type {model_type!a} is not read here; known are {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def family_for(model: ModelConfig, wanted: str | None = None) -> Family:
    """The family, of all or the one that is wanted, that a model of ours is. Raises ConfigError with all reasons."""
    candidates = FAMILIES if wanted is None else {wanted: family_of(wanted)}
    misfits = {name: family.misfits(model) for name, family in candidates.items()}
    for name, found in misfits.items():
        if not found:
            return candidates[name]
    lines = [f"{name}: {'; '.join(found)}" for name, found in misfits.items()]
    raise ConfigError("no family of transformers computes what this model does:\n  " + "\n  ".join(lines))
