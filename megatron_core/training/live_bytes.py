# SPDX-License-Identifier: Apache-2.0
"""Bytes of live tensors in a step by what they are for, counted storage by storage: the same on a CPU as on CUDA.

Parameters, gradients and optimizer states are there all the time. Everything else is met as an operator takes or makes
it, and leaves the count when its storage is freed. Activations are what a chunk's forward leaves behind for backward,
its input included: what is still live when it has returned, all but its output. Temporary is what the peak had beyond
them: intermediate results, messages, the batch, and what recomputation makes again. What an operator allocates and
frees within itself is not seen, nor what an allocator rounds up or keeps.

Looking at each operator makes a step slower by the time of Python, but changes no number.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_core.optim.onebit_adam import OneBitAdam
from megatron_core.parallel.host_storage import on_host
from megatron_core.training.build import Run

STATIC = ("parameters", "gradients", "optimizer")
"""Categories that are there all the time."""
CATEGORIES = (*STATIC, "activations", "temporary", "total")
"""Keys of the result; total is the most that was live at once, the sum of all others."""


@dataclass
class _Live:
    """A storage that was met in this step."""

    nbytes: int
    number: int
    """In the order of meeting."""
    reference: weakref.ref[torch.UntypedStorage]
    """Calls back when the storage is freed."""
    kept: bool = False
    """Whether it is an activation."""


class LiveBytes(TorchDispatchMode):
    """Counts while it is entered."""

    def __init__(self, device_type: str, static: Mapping[str, Sequence[torch.Tensor]]) -> None:
        """Storages of devices of another type, and of the host where that is a CPU too, do not count.

        static: by category; one storage counts once.
        """
        super().__init__()
        self._device_type = device_type
        self._static: set[int] = set()
        self._peaks = dict.fromkeys(CATEGORIES, 0)
        for category, tensors in static.items():
            for storage in map(torch.Tensor.untyped_storage, tensors):
                if self._counts(storage) and storage._cdata not in self._static:
                    self._static.add(storage._cdata)
                    self._peaks[category] += storage.nbytes()
        self._live: dict[int, _Live] = {}
        self._met = self._live_bytes = self._live_peak = self._kept_bytes = self._forward = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Perform an operator and look at all tensors that it took or made."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace != "prim":  # which asks a fake tensor for its device, again and again
            self._meet_all((args, tuple(kwargs.values()), result))
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from importing its compiler at the first operator, which takes each rank 1.4 s."""
        return False

    def begin_forward(self, hidden: torch.Tensor | None) -> None:
        """A chunk's forward begins, from `hidden` if it is not the first."""
        self._forward = self._met
        received = None if hidden is None else self._meet(hidden)
        if received is not None:
            self._keep(received)

    def end_forward(self, output: torch.Tensor) -> None:
        """It has returned."""
        passed_on = self._meet(output)
        for live in self._live.values():
            if live.number >= self._forward and live is not passed_on:
                self._keep(live)

    def peaks(self) -> dict[str, int]:
        """Bytes by category."""
        total = sum(self._peaks[category] for category in STATIC) + self._live_peak
        return {**self._peaks, "temporary": self._live_peak - self._peaks["activations"], "total": total}

    def _meet_all(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                self._meet(value)
            elif isinstance(value, tuple | list):
                self._meet_all(value)

    def _meet(self, tensor: torch.Tensor) -> _Live | None:
        """The entry of a tensor's storage; None where it does not count or is static."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._static or not self._counts(storage):
            return None
        found = self._live.get(key)
        if found is None:
            reference = weakref.ref(storage, lambda _: self._free(key))
            found = self._live[key] = _Live(storage.nbytes(), self._met, reference)
            self._met += 1
            self._live_bytes += found.nbytes
            self._live_peak = max(self._live_peak, self._live_bytes)
        return found

    def _counts(self, storage: torch.UntypedStorage) -> bool:
        return storage.device.type == self._device_type and not on_host(storage)

    def _keep(self, live: _Live) -> None:
        if not live.kept:
            live.kept = True
            self._kept_bytes += live.nbytes
            self._peaks["activations"] = max(self._peaks["activations"], self._kept_bytes)

    def _free(self, key: int) -> None:
        live = self._live.pop(key)
        self._live_bytes -= live.nbytes
        if live.kept:
            self._kept_bytes -= live.nbytes


@contextmanager
def counted(run: Run) -> Iterator[LiveBytes]:
    """Count what is live on this rank's device while a step is taken."""
    states = run.optimizer.states
    errors = run.optimizer.errors if isinstance(run.optimizer, OneBitAdam) else []
    static = {
        "parameters": [bucket.weights for bucket in run.reducer.buckets],
        "gradients": run.reducer.device_memory,
        "optimizer": [
            *(tensor for s in states for tensor in (s.master, s.moments.m, s.moments.v)),  # a master may be the weights
            *(tensor for e in errors for tensor in (e.worker, e.server)),
        ],
    }
    # Of a storage and not of the device: fake ones are on `meta`, whatever device they stand for.
    live = LiveBytes(run.reducer.buckets[0].weights.untyped_storage().device.type, static)
    hooks = [
        hook
        for chunk in run.chunks
        for hook in (
            chunk.register_forward_pre_hook(lambda _, inputs: live.begin_forward(inputs[0])),
            chunk.register_forward_hook(lambda _, __, output: live.end_forward(output)),
        )
    ]
    try:
        with live:
            yield live
    finally:
        for hook in hooks:
            hook.remove()
