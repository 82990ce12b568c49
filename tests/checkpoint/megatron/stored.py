# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of ours with known weights, to be exported."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch

from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.foreign import ForeignModel, ForeignTensor
from megatron_core.checkpoint.write_foreign import write_checkpoint
from megatron_core.config.model import ModelConfig


def save_weights(root: Path, weights: Mapping[str, torch.Tensor], config: ModelConfig, *, step: int = 1000) -> Path:
    """<root>/step_*, with a NullTokenizer; returns that directory."""
    tensors = [
        ForeignTensor(
            name=name, shape=tuple(values.shape), dtype=values.dtype, read=lambda values=values: values.clone()
        )
        for name, values in weights.items()
    ]
    saved = {
        "model": asdict(replace(config, vocab_size=config.vocabulary - 1)),
        "data": {"tokenizer_type": "NullTokenizer"},
    }
    foreign = ForeignModel(config=saved, tensors=tensors, origin="a test")
    write_checkpoint(foreign, root, step=step, report=lambda nbytes: None)
    return step_directory(root, step)
