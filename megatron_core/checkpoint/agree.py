# SPDX-License-Identifier: Apache-2.0
"""What all ranks must know alike before one of them goes on: what rank 0 found, who failed, which names there are.

An error that one rank meets alone would leave the others in a collective for ever; here it reaches all of them.
"""

import json
from collections.abc import Callable, Mapping

import torch

from megatron_core.errors import CheckpointError, ConfigError, DataError, UserError
from megatron_core.parallel.collectives import MAX, all_gather, all_reduce, broadcast
from megatron_core.parallel.context import Group, ParallelContext

_ERRORS: tuple[type[UserError], ...] = (CheckpointError, ConfigError, DataError)
_NO_ERROR = len(_ERRORS)

Shapes = Mapping[str, tuple[int, ...]]


def from_rank_0(make: Callable[[], bytes], ctx: ParallelContext) -> bytes:
    """What `make` returns on rank 0, on every rank; so is any UserError that it raises."""
    message = b""
    if ctx.rank == 0:
        try:
            message = bytes([_NO_ERROR]) + make()
        except _ERRORS as error:
            kind = next(number for number, cls in enumerate(_ERRORS) if isinstance(error, cls))
            message = bytes([kind]) + str(error).encode()
        except OSError as error:
            message = b"\0" + f"cannot read the checkpoints: {error}".encode()
    message = _broadcast(message, 0, ctx)
    if message[0] != _NO_ERROR:
        raise _ERRORS[message[0]](message[1:].decode())
    return message[1:]


def first_failure(reason: str | None, ctx: ParallelContext) -> str | None:
    """Why the lowest rank that gives a reason failed, the same text on every rank; None where none gives any."""
    size = ctx.world.size
    score = torch.tensor([0 if reason is None else size - ctx.rank], dtype=torch.int64, device=ctx.device)
    highest = int(all_reduce(score, ctx.world, MAX))
    if highest == 0:
        return None
    failed = size - highest
    text = _broadcast((reason or "no reason given").encode(), failed, ctx).decode()
    return text if size == 1 else f"[rank {failed}] {text}"


def union_of_shapes(own: Shapes, ctx: ParallelContext) -> Shapes:
    """All tensors of the model by name, from those of each rank: tp ranks and stages together hold every one."""
    for group in (ctx.tp, ctx.pp):
        texts = gather_messages(json.dumps(own).encode(), group, ctx)
        own = {name: tuple(shape) for text in texts for name, shape in json.loads(text).items()}
    return own


def _broadcast(message: bytes, source: int, ctx: ParallelContext) -> bytes:
    """The message of rank `source`, which is not empty, on every rank."""
    if ctx.world.size == 1:
        return message
    length = broadcast(torch.tensor([len(message)], dtype=torch.int64, device=ctx.device), ctx.world, source)
    if ctx.rank != source:
        return _to_bytes(broadcast(torch.empty(int(length), dtype=torch.uint8, device=ctx.device), ctx.world, source))
    broadcast(_to_tensor(message, ctx.device), ctx.world, source)
    return message


def gather_messages(message: bytes, group: Group, ctx: ParallelContext) -> list[bytes]:
    """Everybody's message, in order of coordinate. All members must call."""
    if group.size == 1:
        return [message]
    lengths = all_gather(torch.tensor([len(message)], dtype=torch.int64, device=ctx.device), group).tolist()
    padded = _to_tensor(message.ljust(max(1, *lengths)), ctx.device)  # of no elements there is no collective
    rows = all_gather(padded, group).view(group.size, -1)
    return [_to_bytes(row[:length]) for row, length in zip(rows, lengths)]


def _to_tensor(message: bytes, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8).to(device)


def _to_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
