# SPDX-License-Identifier: Apache-2.0
"""From sample numbers to the microbatches of one rank.

Only tp coordinate 0 of the stages that look at tokens reads data; it broadcasts a whole step to its tp group in one
message. The other stages need positions, and sample numbers for dropout, which are arithmetic.
"""

from collections.abc import Sequence

import torch

from megatron_core.data.batch import Batch
from megatron_core.data.loader import Loader
from megatron_core.data.sampler import StepPlan
from megatron_core.kernels.dropout import DropoutKey
from megatron_core.model.microbatch import Microbatch
from megatron_core.parallel.collectives import broadcast
from megatron_core.parallel.context import ParallelContext


class MicrobatchSource:
    """Hands out the microbatches of one step after another, on every rank."""

    def __init__(
        self, ctx: ParallelContext, seq_length: int, loader: Loader | None, *, needs_tokens: bool, masks: bool
    ) -> None:
        """`loader`: on the ranks that read. `needs_tokens`: this stage looks at tokens. `masks`: by document."""
        self._ctx, self._seq_length, self._loader = ctx, seq_length, loader
        self._needs_tokens, self._masks = needs_tokens, masks

    def step(self, plan: StepPlan, dropout: tuple[int, int] | None) -> list[Microbatch]:
        """Microbatches of `plan`, which must be the loader's next; `dropout`: (seed, step) in training."""
        fields = self._fields(plan) if self._needs_tokens else None
        positions = torch.arange(self._seq_length, device=self._ctx.device).unsqueeze(0)
        microbatches = []
        for number, samples in enumerate(plan):
            key = None if dropout is None else DropoutKey(*dropout, samples)
            if fields is None:
                microbatches.append(Microbatch(position_ids=positions, dropout=key))
                continue
            tokens, labels, loss_mask, position_ids, *documents = fields[:, number]
            microbatches.append(
                Microbatch(
                    tokens=tokens,
                    labels=labels,
                    loss_mask=loss_mask.bool(),
                    position_ids=position_ids,
                    document_ids=documents[0] if documents else None,
                    dropout=key,
                )
            )
        return microbatches

    def skip(self) -> None:
        """Pass over the loader's next step."""
        if self._loader is not None:
            next(self._loader)

    def close(self) -> None:
        """End the loader, where this rank has one."""
        if self._loader is not None:
            self._loader.close()

    def _fields(self, plan: StepPlan) -> torch.Tensor:
        """Tokens, labels, loss mask, positions (and document ids) of a step: [4 or 5, m, b, s] int64."""
        shape = (5 if self._masks else 4, len(plan), len(plan[0]), self._seq_length)
        if self._loader is None:
            return broadcast(torch.empty(shape, dtype=torch.int64, device=self._ctx.device), self._ctx.tp)
        stacked = _stack(next(self._loader)).to(self._ctx.device)
        assert stacked.shape == shape, f"the loader gave {tuple(stacked.shape)}, the plan is {shape}"
        return broadcast(stacked, self._ctx.tp)


def _stack(batches: Sequence[Batch]) -> torch.Tensor:
    names = ["tokens", "labels", "loss_mask", "position_ids"]
    if batches[0].document_ids is not None:
        names.append("document_ids")
    return torch.stack([torch.stack([getattr(batch, name).long() for batch in batches]) for name in names])


def looks_at_tokens(ctx: ParallelContext, *, by_document: bool) -> bool:
    """Whether this rank's stage needs data; `by_document`: positions or masks depend on document ends."""
    return by_document or ctx.is_first_stage or ctx.is_last_stage
