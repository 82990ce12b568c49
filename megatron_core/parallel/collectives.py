# SPDX-License-Identifier: Apache-2.0
"""The collectives of torch.distributed over a Group, the identity at size 1.

torch renames some of them (`reduce_scatter_tensor` became `reduce_scatter_single` in 2.13): this file knows, nobody
else does. Every function works on plain tensors; their autograd twins are in `tensor_parallel/mappings.py`. What blocks
is entered in the group's log, for the watchdog and for the seconds spent waiting.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from megatron_core.parallel.collective_log import Call, CollectiveLog
from megatron_core.parallel.context import Group
from megatron_core.parallel.fake_memory import is_fake


class Work(Protocol):
    """A collective in flight."""

    def wait(self) -> object:
        """Return when the result may be read (on CUDA: by the current stream)."""

    def is_completed(self) -> bool:
        """Whether it has finished already."""


class _Done:
    """The work of a group of one: finished before it began."""

    def wait(self) -> None:
        return None

    def is_completed(self) -> bool:
        return True


class _All:
    """Several works as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


class _Logged:
    """A work of torch whose waits are in the log."""

    __slots__ = ("_call", "_log", "_work")

    def __init__(self, work: Work, call: Call, log: CollectiveLog) -> None:
        self._work, self._call, self._log = work, call, log

    def wait(self) -> None:
        self._log.enter(self._call)
        self._work.wait()
        self._log.leave()

    def is_completed(self) -> bool:
        return self._work.is_completed()


DONE: Work = _Done()
SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX

_all_gather: Callable[..., Work] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Callable[..., Work] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def all_reduce_async(tensor: torch.Tensor, group: Group, op: dist.ReduceOp.RedOpType = SUM) -> Work:
    """Start an in-place reduction of `tensor` (contiguous) over `group`."""
    if group.size == 1:
        return DONE
    call = group.log.begin("all_reduce", group.name, group.ranks)
    work = dist.all_reduce(tensor, op=op, group=group.handle, async_op=True)
    group.log.leave()
    return _Logged(work, call, group.log)


def all_reduce(tensor: torch.Tensor, group: Group, op: dist.ReduceOp.RedOpType = SUM) -> torch.Tensor:
    """Reduce `tensor` in place over `group` and return it."""
    if group.size > 1:
        group.log.begin("all_reduce", group.name, group.ranks)
        dist.all_reduce(tensor, op=op, group=group.handle)
        group.log.leave()
    return tensor


def all_gather_async(tensor: torch.Tensor, group: Group) -> tuple[torch.Tensor, Work]:
    """Start concatenating every member's `tensor` [n, ...] along dim 0; the result is [size * n, ...]."""
    if group.size == 1:
        return tensor, DONE
    out = tensor.new_empty(group.size * tensor.shape[0], *tensor.shape[1:])
    tensor = tensor.contiguous()
    call = group.log.begin("all_gather", group.name, group.ranks)
    work = _all_gather(out, tensor, group=group.handle, async_op=True)
    group.log.leave()
    return out, _Logged(work, call, group.log)


def all_gather(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    """Concatenate every member's `tensor` [n, ...] along dim 0: [size * n, ...]."""
    out, work = all_gather_async(tensor, group)
    work.wait()
    return out


def reduce_scatter_async(tensor: torch.Tensor, group: Group) -> tuple[torch.Tensor, Work]:
    """Start summing `tensor` [size * n, ...] over `group`; member i gets rows [i * n, (i + 1) * n)."""
    if group.size == 1:
        return tensor, DONE
    assert tensor.shape[0] % group.size == 0, f"{tensor.shape[0]} rows cannot be scattered over {group.size} ranks"
    out = tensor.new_empty(tensor.shape[0] // group.size, *tensor.shape[1:])
    tensor = tensor.contiguous()
    call = group.log.begin("reduce_scatter", group.name, group.ranks)
    work = _reduce_scatter(out, tensor, group=group.handle, async_op=True)
    group.log.leave()
    return out, _Logged(work, call, group.log)


def reduce_scatter(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    """Sum `tensor` [size * n, ...] over `group` and keep this member's n rows."""
    out, work = reduce_scatter_async(tensor, group)
    work.wait()
    return out


def all_to_all_async(tensor: torch.Tensor, group: Group) -> tuple[torch.Tensor, Work]:
    """Start sending rows [i * n, (i + 1) * n) of `tensor` [size * n, ...] to member i; its rows come in their place."""
    if group.size == 1:
        return tensor, DONE
    assert tensor.shape[0] % group.size == 0, f"{tensor.shape[0]} rows cannot be dealt to {group.size} ranks"
    tensor = tensor.contiguous()
    out = torch.empty_like(tensor)
    call = group.log.begin("all_to_all", group.name, group.ranks)
    work = dist.all_to_all_single(out, tensor, group=group.handle, async_op=True)
    group.log.leave()
    return out, _Logged(work, call, group.log)


def reduce_scatter_in_place(tensor: torch.Tensor, group: Group) -> Work:
    """Start summing flat `tensor` over `group`; of `size` equal parts, member i's holds the sum in the i-th alone."""
    if group.size == 1:
        return DONE
    if not (tensor.is_cuda or is_fake(tensor)):
        # gloo has no reduce-scatter: torch makes one of an all-reduce of a copy.
        return all_reduce_async(tensor, group)
    own = tensor.view(group.size, -1)[group.coordinate]
    call = group.log.begin("reduce_scatter", group.name, group.ranks)
    work = _reduce_scatter(own, tensor, group=group.handle, async_op=True)
    group.log.leave()
    return _Logged(work, call, group.log)


def all_gather_in_place(tensor: torch.Tensor, group: Group) -> Work:
    """Start filling flat `tensor` from all members: of `size` equal parts, the i-th comes from member i."""
    if group.size == 1:
        return DONE
    parts = tensor.view(group.size, -1)
    call = group.log.begin("all_gather", group.name, group.ranks)
    if tensor.is_cuda or is_fake(tensor):
        work = _all_gather(tensor, parts[group.coordinate], group=group.handle, async_op=True)
    else:
        # gloo gathers into a tensor of its own and copies it: 3.5 x the time of a broadcast of each part.
        work = _All([dist.broadcast(p, r, group=group.handle, async_op=True) for p, r in zip(parts, group.ranks)])
    group.log.leave()
    return _Logged(work, call, group.log)


def broadcast(tensor: torch.Tensor, group: Group, source: int = 0) -> torch.Tensor:
    """Overwrite `tensor` with that of the member at coordinate `source`, and return it."""
    if group.size > 1:
        group.log.begin("broadcast", group.name, group.ranks)
        dist.broadcast(tensor, src=group.ranks[source], group=group.handle)
        group.log.leave()
    return tensor


def exchange_async(transfers: Sequence[tuple[bool, int, torch.Tensor]], group: Group) -> Sequence[Work]:
    """Start sends (True) and receives (False) with the members at these coordinates, as one batch.

    Both ends must list the transfers between them in the same order. NCCL returns one work for the whole batch: it is
    repeated, so that there is one a transfer.
    """
    operations = [
        dist.P2POp(dist.isend if send else dist.irecv, tensor, group.ranks[peer], group.handle)
        for send, peer, tensor in transfers
    ]
    calls = [_begin_transfer(send, peer, group) for send, peer, _ in transfers]
    works = dist.batch_isend_irecv(operations)
    group.log.leave()
    if any(is_fake(tensor) for _, _, tensor in transfers):
        return [DONE] * len(operations)  # torch's fake work is never done, but NCCL's is long before the next batch
    works = works if len(works) == len(operations) else works * len(operations)
    return [_Logged(work, call, group.log) for work, call in zip(works, calls)]


def _begin_transfer(send: bool, peer: int, group: Group) -> Call:
    own, other = group.ranks[group.coordinate], group.ranks[peer]
    source, destination = (own, other) if send else (other, own)
    channel = f"{group.name} {source}>{destination}"
    return group.log.begin("send" if send else "receive", group.name, (source, destination), channel)


def barrier(group: Group) -> None:
    """Return when every member has called."""
    if group.size > 1:
        group.log.begin("barrier", group.name, group.ranks)
        dist.barrier(group=group.handle)
        group.log.leave()
