# SPDX-License-Identifier: Apache-2.0
"""Whole logits on every rank, to compare a model with another program's. For small inputs: nothing is kept cut."""

import math

import torch

from megatron_core.inference.model import InferenceModel
from megatron_core.kernels.precision import at_least_fp32
from megatron_core.parallel.collectives import all_gather, broadcast


def logits(model: InferenceModel, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [b, s, v] of tokens [b, s] from position 0 on, at least fp32, the same on every rank of a replica."""
    ctx = model.ctx
    with torch.inference_mode():
        tokens = tokens.to(ctx.device)
        b, s = tokens.shape
        x = model.residual_stream(tokens, torch.arange(s, device=ctx.device).unsqueeze(0))
        shape = (b, s, model.config.vocabulary)
        if x is None:
            whole = torch.empty(shape, dtype=torch.promote_types(model.dtype, torch.float32), device=ctx.device)
        else:
            whole = at_least_fp32(gather_vocabulary(model, model.local_logits(x))).transpose(0, 1).contiguous()
        return broadcast(whole, ctx.pp, ctx.pp.size - 1)


def gather_vocabulary(model: InferenceModel, local: torch.Tensor) -> torch.Tensor:
    """Last stage: this rank's logits [..., v_local] to those of all tp ranks, [..., v]."""
    if model.ctx.tp.size == 1:
        return local
    padded = local.new_zeros(model.vocab_slice.rows, math.prod(local.shape[:-1]))  # every rank gathers as many
    padded[: local.shape[-1]] = local.reshape(padded.shape[1], local.shape[-1]).t()
    whole = all_gather(padded, model.ctx.tp)[: model.config.vocabulary]
    return whole.t().reshape(*local.shape[:-1], -1)
