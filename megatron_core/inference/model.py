# SPDX-License-Identifier: Apache-2.0
"""InferenceModel: the forward of a whole model, cut as the context says, over batches of any shape.

Training moves microbatches of one shape by a program; here one batch goes through all virtual stages, each sending its
output to the next as soon as it has it. Nothing waits for a send before the next one, so that several batches in a row
fill the pipeline by themselves. Letters: b batch, s tokens, h hidden, v vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from megatron_core.attention.self_attention import EarlierTokens
from megatron_core.config.model import ModelConfig
from megatron_core.model.gpt import GPTChunk
from megatron_core.model.microbatch import Microbatch
from megatron_core.parallel.collectives import Work, all_gather, exchange_async
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from megatron_core.tensor_parallel.vocab import vocab_slice


class InferenceModel:
    """The chunks of one rank and what joins them to those of the others.

    All ranks of a replica (tp x pp) must make the same calls with the same tokens, under torch.inference_mode or
    torch.no_grad.
    """

    def __init__(
        self,
        config: ModelConfig,
        ctx: ParallelContext,
        chunks: Sequence[GPTChunk],
        dtype: torch.dtype,
        *,
        sequence_parallel: bool = False,
    ) -> None:
        """`chunks`: this rank's virtual stages in order; `sequence_parallel`: as they were built, in a live run."""
        self.config, self.ctx, self.chunks, self.dtype = config, ctx, chunks, dtype
        self.sequence_parallel = sequence_parallel
        self.vocab_slice = vocab_slice(config, ctx.tp)
        """Which logits this tp rank has."""
        self._sent: tuple[Work, torch.Tensor] | None = None

    def residual_stream(
        self, tokens: torch.Tensor, position_ids: torch.Tensor, earlier: EarlierTokens | None = None
    ) -> torch.Tensor | None:
        """All layers over tokens [b, s]: [s, b, h] before the final norm on the last stage, None on the others.

        position_ids [b, s] or [1, s]. A token sees those to its left in its row, and of `earlier` ones what that lets
        it see; so what stands right of a row's end changes nothing else.
        """
        b, s = tokens.shape
        padding = -s % self.ctx.tp.size if self.sequence_parallel else 0
        tokens, position_ids = F.pad(tokens, (0, padding)), F.pad(position_ids, (0, padding))
        batch = Microbatch(position_ids=position_ids, tokens=tokens, earlier=earlier)
        s_local = (s + padding) // (self.ctx.tp.size if self.sequence_parallel else 1)
        x: torch.Tensor | None = None
        for number, chunk in enumerate(self.chunks):
            if self.ctx.pp.size > 1 and not (self.ctx.is_first_stage and number == 0):
                x = self._receive((s_local, b, self.config.hidden_size))
            x = chunk.residual_stream(x, batch)
            if self.ctx.pp.size > 1 and not (self.ctx.is_last_stage and number == len(self.chunks) - 1):
                self._send(x)
        if not self.ctx.is_last_stage:
            return None
        assert x is not None, "a stage has at least one chunk"
        return all_gather(x, self.ctx.tp)[:s] if self.sequence_parallel else x

    def local_logits(self, x: torch.Tensor) -> torch.Tensor:
        """Last stage: x [..., h] before the final norm to the logits [..., v_local] that `vocab_slice` names."""
        head = self.chunks[-1].head
        assert head is not None, "the last chunk of the last stage has the head"
        (logits,) = head.linear.of_whole(head.norm(x))
        return logits[..., : self.vocab_slice.stop - self.vocab_slice.start]

    def pack_weights(self) -> None:
        """Speed up few rows at once on a CPU, for good. What the linears then need no more gives up its memory."""
        embeddings = [chunk.embedding.tokens.weight for chunk in self.chunks if chunk.embedding is not None]
        for chunk in self.chunks:
            for module in chunk.modules():
                if isinstance(module, (ColumnParallelLinear, RowParallelLinear)):
                    for weight in module.pack():
                        if not any(weight is embedding for embedding in embeddings):  # tied to the head
                            weight.data = weight.data.new_empty(0)

    def _receive(self, shape: tuple[int, int, int]) -> torch.Tensor:
        pp = self.ctx.pp
        x = torch.empty(shape, dtype=self.dtype, device=self.ctx.device)
        exchange_async([(False, (pp.coordinate - 1) % pp.size, x)], pp)[0].wait()
        return x

    def _send(self, x: torch.Tensor) -> None:
        pp, x = self.ctx.pp, x.contiguous()
        if self._sent is not None:
            self._sent[0].wait()
        # Held until it has left: the work alone does not keep the tensor.
        self._sent = (exchange_async([(True, (pp.coordinate + 1) % pp.size, x)], pp)[0], x)
