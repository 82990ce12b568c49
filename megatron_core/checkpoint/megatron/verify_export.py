# SPDX-License-Identifier: Apache-2.0
"""Reads an exported tree as an import would and compares it with the checkpoint that it was made from, to the bit."""

from dataclasses import replace

import torch

from megatron_core.checkpoint.foreign import ForeignTensor
from megatron_core.checkpoint.megatron.import_model import foreign_model
from megatron_core.checkpoint.megatron.opened import OpenedMegatron
from megatron_core.checkpoint.rectangle import whole
from megatron_core.checkpoint.saved_config import config_from_json
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.checkpoint.verify import ReportBytes
from megatron_core.config.data import DataConfig
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError

_COMPARED_BYTES = 2**22


def verify_export(opened: OpenedMegatron, stored: StoredModel, report: ReportBytes) -> None:
    """Raise CheckpointError unless it holds the stored model. `report` hears of bytes compared."""
    foreign = foreign_model(opened, DataConfig(), stored.model.vocabulary)
    read = _function(config_from_json(foreign.config).model)
    if read != _function(stored.model):
        raise CheckpointError(f"{opened.origin} reads back as another model: {read}, not {_function(stored.model)}")
    if sorted(tensor.name for tensor in foreign.tensors) != stored.names:
        raise CheckpointError(f"{opened.origin} reads back with other weights than were written")
    for tensor in foreign.tensors:
        _require_equal(tensor, stored, opened.origin)
        report(tensor.nbytes)


def _function(config: ModelConfig) -> ModelConfig:
    """The model without what has a meaning in training alone, or is derived."""
    return replace(
        config,
        ffn_hidden_size=config.ffn_size,
        kv_channels=config.head_dim,
        gelu=config.gelu_form,
        num_query_groups=config.num_query_groups if config.group_query_attention else 1,
        max_position_embeddings=config.max_position_embeddings or config.seq_length,
        padded_vocab_size=None,
        embedding_gradient_shrink=1.0,
        z_loss_coeff=0.0,
    )


def _require_equal(tensor: ForeignTensor, stored: StoredModel, origin: str) -> None:
    values = tensor.read()
    rows = max(_COMPARED_BYTES * tensor.shape[0] // tensor.nbytes, 1)
    for start in range(0, tensor.shape[0], rows):
        part = whole(tensor.shape).rows(0, start, min(start + rows, tensor.shape[0]))
        ours = torch.empty(part.shape, dtype=stored.dtype(tensor.name))
        stored.fill(ours, tensor.name, part)
        theirs = values[part.start[0] : part.stop[0]]
        if theirs.dtype != ours.dtype or not torch.equal(theirs.view(torch.uint8), ours.view(torch.uint8)):
            raise CheckpointError(f"{origin}: {tensor.name} does not read back as it was written")
