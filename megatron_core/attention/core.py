# SPDX-License-Identifier: Apache-2.0
"""Dense causal attention of the heads that one rank holds.

torch's scaled_dot_product_attention does the work. It takes no generator, so that with attention dropout the
probabilities are formed here and dropped by keyed masks, one stream a head: the same at every layout.
"""

import torch
import torch.nn.functional as F

from megatron_core.kernels.matmul import widened
from megatron_core.kernels.precision import wide_dtype


def document_mask(document_ids: torch.Tensor) -> torch.Tensor:
    """Which keys each query may see, [b, 1, s, s]: earlier ones of its own document. document_ids [b, s]."""
    same = document_ids.unsqueeze(1) == document_ids.unsqueeze(2)
    return same.tril().unsqueeze(1)


def flash_can_run(dtype: torch.dtype, masked: bool, capability: tuple[int, int]) -> bool:
    """Whether SDPA can take its flash kernel on a GPU of this compute capability.

    The next kernel in line knows no query groups; asked for them, SDPA would form the whole [b, a, s, s] of scores.
    """
    return dtype in (torch.float16, torch.bfloat16) and not masked and capability >= (8, 0)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float) -> torch.Tensor:
    """Attention without dropout. q [b, a, s, d]; k, v [b, g, s, d]; mask [b, 1, s, s] (None: causal); [b, a, s, d].

    With a mask there may be more keys than queries.
    """
    grouped = q.shape[1] != k.shape[1]
    if grouped and q.shape[2] == 1 and mask is not None:
        # Of one query a head, those of a group stand as the group's queries: keys are read once, and as they lie.
        return attend(q.reshape(q.shape[0], k.shape[1], -1, q.shape[3]), k, v, mask, scale).reshape(q.shape)
    if grouped and q.is_cuda:
        capability = torch.cuda.get_device_capability(q.device)
        if not flash_can_run(q.dtype, mask is not None, capability):
            heads_per_group = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(heads_per_group, 1), v.repeat_interleave(heads_per_group, 1)
            grouped = False
    # SDPA's CPU kernel on 16-bit inputs runs its products in the same emulation as a GEMM.
    dtype = q.dtype
    if widened(q):
        q, k, v = q.float(), k.float(), v.float()
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )
    return out.to(dtype)


def attend_with_dropout(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    keep: torch.Tensor,
    rate: float,
) -> torch.Tensor:
    """The same where only probabilities marked in `keep` [b, a, s, s] stay, scaled up by 1 / (1 - rate)."""
    heads_per_group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(heads_per_group, 1), v.repeat_interleave(heads_per_group, 1)
    if mask is None:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    scores = (q @ k.transpose(-1, -2) * scale).to(wide_dtype(q.dtype)).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) * keep * (1 / (1 - rate))).to(q.dtype) @ v
