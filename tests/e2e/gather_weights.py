# SPDX-License-Identifier: Apache-2.0
"""Collects the whole model on rank 0, by global names, for whoever compares layouts."""

import json
import math
from collections.abc import Iterable

import torch
import torch.distributed as dist

from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.shard_spec import ShardSpec, SpecParameter

Piece = tuple[ShardSpec, torch.Tensor]


def gather_weights(parameters: Iterable[SpecParameter], ctx: ParallelContext) -> dict[str, torch.Tensor] | None:
    """Every parameter whole, on the CPU, with its true vocabulary; on rank 0 (None elsewhere).

    Each element comes from the one rank that counts it, dp coordinate 0. All ranks must call.
    """
    pieces: list[Piece] = [(p.spec, p.spec.real(p.detach())) for p in parameters if p.spec.counted]
    senders = ctx.grid.members(0, "tp", "cp", "pp")
    if ctx.rank != 0:
        if ctx.rank in senders:
            _send(pieces, ctx)
        return None
    whole: dict[str, torch.Tensor] = {}
    for spec, tensor in pieces:
        _place(whole, spec, tensor)
    for sender in senders[1:]:
        for spec, tensor in _receive(sender, ctx):
            _place(whole, spec, tensor)
    return whole


def _place(whole: dict[str, torch.Tensor], spec: ShardSpec, tensor: torch.Tensor) -> None:
    target = whole.setdefault(spec.name, torch.empty(spec.shape, dtype=tensor.dtype))
    spec.take(target).copy_(tensor)


def _send(pieces: list[Piece], ctx: ParallelContext) -> None:
    """What is coming, as JSON, then one flat message with all of it."""
    table = [
        {"name": s.name, "shape": s.shape, "dim": s.dim, "start": s.start, "stop": s.stop, "dtype": str(t.dtype)[6:]}
        for s, t in pieces
    ]
    text = torch.frombuffer(bytearray(json.dumps(table).encode()), dtype=torch.uint8).to(ctx.device)
    dist.send(torch.tensor([text.numel()], device=ctx.device), 0)
    dist.send(text, 0)
    if pieces:
        dist.send(torch.cat([tensor.reshape(-1) for _, tensor in pieces]), 0)


def _receive(sender: int, ctx: ParallelContext) -> Iterable[Piece]:
    length = torch.zeros(1, dtype=torch.int64, device=ctx.device)
    dist.recv(length, sender)
    text = torch.empty(int(length), dtype=torch.uint8, device=ctx.device)
    dist.recv(text, sender)
    table = json.loads(bytes(text.cpu().numpy()))
    specs = [
        ShardSpec(name=e["name"], shape=tuple(e["shape"]), dim=e["dim"], start=e["start"], stop=e["stop"])
        for e in table
    ]
    if not specs:
        return []
    sizes = [math.prod(spec.local_shape) for spec in specs]
    flat = torch.empty(sum(sizes), dtype=getattr(torch, table[0]["dtype"]), device=ctx.device)
    dist.recv(flat, sender)
    return [(spec, part.view(spec.local_shape)) for spec, part in zip(specs, flat.split(sizes))]
