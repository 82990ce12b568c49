# SPDX-License-Identifier: Apache-2.0
"""Mailbox: what has arrived for this stage and what waits to leave it, during one program.

Tensors are named by (payload, microbatch, chunk). Receives are waited for only when their tensor is taken, sends only
so that their memory can be dropped. Between two chunks of the same stage (p = 1) a tensor is handed over on the spot.

gloo never says of a send that it is done before someone waits for it. But a tensor that has arrived proves that its
sender had posted that exchange, and so all receives of earlier ones: waiting for what was sent there costs nothing.
"""

from dataclasses import dataclass

import torch

from megatron_core.parallel.collectives import Work, exchange_async
from megatron_core.parallel.context import ParallelContext
from megatron_core.pipeline.action import Exchange, Payload

Name = tuple[Payload, int, int]  # payload, microbatch, chunk on this stage


@dataclass(frozen=True)
class _InFlight:
    """A transfer that was started with exchange number `exchange` of this program."""

    work: Work
    tensor: torch.Tensor
    peer: int
    exchange: int


class Mailbox:
    """Posts exchanges and keeps tensors until they are used."""

    def __init__(self, ctx: ParallelContext, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
        self._ctx, self._shape, self._dtype = ctx, shape, dtype
        self._here: dict[Name, torch.Tensor] = {}
        self._arriving: dict[Name, _InFlight] = {}
        self._outgoing: dict[Name, torch.Tensor] = {}
        self._sending: list[_InFlight] = []
        self._exchanges = 0

    def put(self, payload: Payload, key: tuple[int, int], tensor: torch.Tensor) -> None:
        """Keep what chunk key[1] made of microbatch key[0] until its exchange comes."""
        microbatch, chunk = key
        if self._ctx.pp.size == 1:
            neighbour = chunk + 1 if payload == "activation" else chunk - 1
            self._here[payload, microbatch, neighbour] = tensor
        else:
            self._outgoing[payload, microbatch, chunk] = tensor.contiguous()

    def take(self, payload: Payload, key: tuple[int, int]) -> torch.Tensor:
        """The tensor meant for chunk key[1] and microbatch key[0], waiting for it if need be."""
        if self._ctx.pp.size == 1:
            return self._here.pop((payload, *key))
        arrival = self._arriving.pop((payload, *key))
        arrival.work.wait()
        self._let_go(arrival.peer, arrival.exchange)
        return arrival.tensor

    def _let_go(self, peer: int, exchange: int) -> None:
        """Drop what was sent to `peer` up to that exchange."""
        kept = []
        for sent in self._sending:
            if sent.peer == peer and sent.exchange <= exchange:
                sent.work.wait()
            else:
                kept.append(sent)
        self._sending = kept

    def post(self, exchange: Exchange) -> None:
        """Start all transfers of an exchange."""
        self._sending = [sent for sent in self._sending if not sent.work.is_completed()]
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
            flight = _InFlight(work, tensor, transfer.peer, self._exchanges)
            if transfer.send:
                self._sending.append(flight)
            else:
                self._arriving[transfer.payload, transfer.microbatch, transfer.chunk] = flight
        self._exchanges += 1

    def close(self) -> None:
        """Wait for the last sends. Anything left over is a bug in the program."""
        for sent in self._sending:
            sent.work.wait()
        left = [*self._here, *self._arriving, *self._outgoing]
        assert not left, f"the program ended with tensors nobody used: {left}"
