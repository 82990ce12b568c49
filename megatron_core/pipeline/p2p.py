# SPDX-License-Identifier: Apache-2.0
"""Mailbox: what has arrived for this stage and what waits to leave it, during one program.

Tensors are named by (payload, microbatch, chunk). Receives are waited for only when their tensor is taken, sends only
so that their memory can be dropped. Between two chunks of the same stage (p = 1) a tensor is handed over on the spot.
"""

import torch

from megatron_core.parallel.collectives import Work, exchange_async
from megatron_core.parallel.context import ParallelContext
from megatron_core.pipeline.action import Exchange, Payload

Name = tuple[Payload, int, int]  # payload, microbatch, chunk on this stage


class Mailbox:
    """Posts exchanges and keeps tensors until they are used."""

    def __init__(self, ctx: ParallelContext, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
        self._ctx, self._shape, self._dtype = ctx, shape, dtype
        self._arriving: dict[Name, tuple[torch.Tensor, Work | None]] = {}
        self._outgoing: dict[Name, torch.Tensor] = {}
        self._sending: list[tuple[Work, torch.Tensor]] = []

    def put(self, payload: Payload, key: tuple[int, int], tensor: torch.Tensor) -> None:
        """Keep what chunk key[1] made of microbatch key[0] until its exchange comes."""
        microbatch, chunk = key
        if self._ctx.pp.size == 1:
            neighbour = chunk + 1 if payload == "activation" else chunk - 1
            self._arriving[payload, microbatch, neighbour] = (tensor, None)
        else:
            self._outgoing[payload, microbatch, chunk] = tensor.contiguous()

    def take(self, payload: Payload, key: tuple[int, int]) -> torch.Tensor:
        """The tensor meant for chunk key[1] and microbatch key[0], waiting for it if need be."""
        tensor, work = self._arriving.pop((payload, *key))
        if work is not None:
            work.wait()
        return tensor

    def post(self, exchange: Exchange) -> None:
        """Start all transfers of an exchange."""
        self._sending = [(work, tensor) for work, tensor in self._sending if not work.is_completed()]
        tensors = []
        for transfer in exchange.transfers:
            name = (transfer.payload, transfer.microbatch, transfer.chunk)
            if transfer.send:
                tensors.append(self._outgoing.pop(name))
            else:
                tensors.append(torch.empty(self._shape, dtype=self._dtype, device=self._ctx.device))
        transfers = [(t.send, t.peer, tensor) for t, tensor in zip(exchange.transfers, tensors)]
        works = exchange_async(transfers, self._ctx.pp)
        for transfer, tensor, work in zip(exchange.transfers, tensors, works):
            if transfer.send:
                self._sending.append((work, tensor))
            else:
                self._arriving[transfer.payload, transfer.microbatch, transfer.chunk] = (tensor, work)

    def close(self) -> None:
        """Wait for the last sends. Anything left over is a bug in the program."""
        for work, _ in self._sending:
            work.wait()
        left = [*self._arriving, *self._outgoing]
        assert not left, f"the program ended with tensors nobody used: {left}"
