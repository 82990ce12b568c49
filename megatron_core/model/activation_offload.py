# SPDX-License-Identifier: Apache-2.0
"""Activations that wait for backward in host memory (vDNN, Rhu et al. 2016; Megatron's --cpu-offloading-num-layers).

    forward     0      1      2      3          layers of a chunk, the first 3 offloaded
    down               0      1      2          what a layer has saved leaves while the next one computes
    backward    3      2      1      0
    up          2      1      0                 and comes back while the one above it computes

So at most two offloaded layers' tensors are on the device at once. A storage travels whole and once, however many
tensors of a layer are views of it, and what is saved of it is the same view of what comes back: equal bits, strides and
all. It is one graph's matter: microbatches in flight and several chunks know nothing of each other.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from megatron_core.config.parallel import ParallelConfig
from megatron_core.model.recompute import AS_IT_IS, Keeping
from megatron_core.parallel.host_copies import Copies, DirectCopies, copies_of
from megatron_core.parallel.host_storage import host_like


@dataclass(frozen=True, kw_only=True)
class ActivationOffload:
    """What a run offloads, and one rank's copies. By default nothing."""

    num_layers: int = 0
    """Of each chunk, the first ones."""
    min_elements: int = 1
    """Smaller tensors stay on the device."""
    down: Copies = field(default_factory=DirectCopies)
    up: Copies = field(default_factory=DirectCopies)

    @staticmethod
    def of(config: ParallelConfig, device: torch.device) -> "ActivationOffload":
        """What a config asks for; where that is nothing, no stream is made on a GPU."""
        if not config.cpu_offloading_num_layers:
            return ActivationOffload()
        return ActivationOffload(
            num_layers=config.cpu_offloading_num_layers,
            min_elements=config.min_offloaded_tensor_size,
            down=copies_of(device),
            up=copies_of(device),
        )

    def passage(self, stay: Iterable[torch.Tensor]) -> "Passage":
        """For one microbatch through one chunk; `stay`: tensors that live on anyway, such as parameters."""
        return Passage(self, frozenset(tensor.untyped_storage()._cdata for tensor in stay))


class Passage:
    """One microbatch's forward through one chunk."""

    def __init__(self, offload: ActivationOffload, stay: frozenset[int]) -> None:
        """`stay`: identities of storages, which fake ones have too, unlike addresses."""
        self._offload, self._stay = offload, stay
        self._last: _Layer | None = None  # whose tensors are leaving

    def through(self, number: int, part: Callable[[Keeping], torch.Tensor]) -> torch.Tensor:
        """The output of `part`, which begins at layer `number` of the chunk; it is given what keeps its tensors."""
        layer = None
        if number < self._offload.num_layers and torch.is_grad_enabled():
            layer = _Layer(self._offload, self._stay, self._last)
            with saved_tensors_hooks(layer.pack, layer.unpack):
                x = part(layer)
        else:
            x = part(AS_IT_IS)
        self._follow(layer, x)
        return x

    def finish(self) -> None:
        """After the last layer: whatever is leaving leaves now."""
        if self._last is not None:
            self._last.let_go()
            self._last = None

    def _follow(self, layer: "_Layer | None", x: torch.Tensor) -> None:
        """`layer`, or one that stays, has put out x behind the last one."""
        last = self._last
        # Before this layer's copies begin, so that the device waits for the last one's alone.
        self.finish()
        if layer is not None:
            layer.leave()
            self._last = layer
        elif last is not None:
            x.register_hook(lambda _: last.fetch())


class _Travel:
    """A storage's contents, flat."""

    def __init__(self, on_device: torch.Tensor) -> None:
        self.device = on_device.device
        self.on_device: torch.Tensor | None = on_device
        self.on_host: torch.Tensor | None = None


@dataclass(frozen=True)
class _View:
    """What autograd keeps in place of a tensor."""

    travel: _Travel
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> torch.Tensor:
        whole = self.travel.on_device
        assert whole is not None, "a tensor was asked for while its storage was away"
        return whole.view(self.dtype).as_strided(self.size, self.stride, self.offset)


class _Layer:
    """What one layer saves for backward.

    Once they are back its storages belong to the views that autograd holds alone, so that each is freed as soon as no
    node needs it any more.
    """

    def __init__(self, offload: ActivationOffload, stay: frozenset[int], before: "_Layer | None") -> None:
        self._offload, self._stay = offload, stay
        self._before = before
        # By identity: none is used twice while the tensors are held here, until all of them have left.
        self._travels: dict[int, _Travel] = {}
        self._fetched = self._arrived = False

    def pack(self, tensor: torch.Tensor) -> Any:
        """What is saved instead of a tensor: see `Keeping`."""
        storage = tensor.untyped_storage()
        identity = storage._cdata
        if identity in self._stay or storage.nbytes() < self._offload.min_elements * tensor.itemsize:
            return AS_IT_IS.pack(tensor)
        if identity not in self._travels:
            length = storage.nbytes() // tensor.itemsize
            self._travels[identity] = _Travel(tensor.detach().as_strided((length,), (1,), 0))
        return _View(
            self._travels[identity], tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset())
        )

    def unpack(self, packed: Any) -> torch.Tensor:
        """The tensor again. The first of a layer's has all of them come, and starts the fetch of the layer before."""
        if not isinstance(packed, _View):
            return AS_IT_IS.unpack(packed)
        self._arrive()
        return packed.tensor()

    def leave(self) -> None:
        """Start to copy all to the host."""
        self._offload.down.after_device()
        for travel in self._travels.values():
            assert travel.on_device is not None, "a layer leaves once"
            travel.on_host = host_like(travel.on_device)
            self._offload.down.copy(travel.on_host, travel.on_device)

    def let_go(self) -> None:
        """Free the device's memory, which the device may use once the copies are done."""
        self._offload.down.before_device()
        for travel in self._travels.values():
            travel.on_device = None

    def fetch(self) -> None:
        """Start to copy all back."""
        if self._fetched:
            return
        self._fetched = True
        travels = list(self._travels.values())
        for travel in travels:
            assert travel.on_host is not None, "what has not left cannot be fetched"
            travel.on_device = torch.empty_like(travel.on_host, device=travel.device)
        self._offload.up.after_device()
        for travel in travels:
            assert travel.on_device is not None and travel.on_host is not None
            self._offload.up.copy(travel.on_device, travel.on_host)

    def _arrive(self) -> None:
        """The device waits for this layer, and the next one to come is on its way from here on."""
        if self._arrived:
            return
        self._arrived = True
        self.fetch()
        self._offload.up.before_device()
        for travel in self._travels.values():
            travel.on_host = None
        self._travels.clear()
        if self._before is not None:
            self._before.fetch()
            self._before = None
