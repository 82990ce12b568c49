# SPDX-License-Identifier: Apache-2.0
"""Models in transformers' files, written without it: random tensors by a family's own table."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from megatron_core.checkpoint.huggingface.families import family_for
from megatron_core.checkpoint.huggingface.link import by_theirs
from megatron_core.checkpoint.huggingface.weight_files import SINGLE
from megatron_core.config.model import ModelConfig
from tests.small_model import small

LLAMA = small(
    position_embedding_type="rope",
    normalization="RMSNorm",
    swiglu=True,
    add_bias_linear=False,
    ffn_hidden_size=24,
    group_query_attention=True,
    num_query_groups=2,
    untie_embeddings_and_output_weights=True,
)
TIED = small()  # GPT-2


def tensors_of(model: ModelConfig, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Random tensors under their names and in their shapes."""
    torch.manual_seed(5)
    shapes = {name: parts[0].theirs_shape for name, parts in by_theirs(family_for(model).links(model)).items()}
    return {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}


def write(folder: Path, model: ModelConfig, tensors: dict[str, torch.Tensor] | None = None, **changes: Any) -> Path:
    """A directory with such a model; `changes` are keys of its config.json."""
    folder.mkdir()
    family = family_for(model)
    config = {"model_type": family.name, **family.write_config(model), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors_of(model) if tensors is None else tensors, folder / SINGLE)
    return folder
