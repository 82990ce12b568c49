# SPDX-License-Identifier: Apache-2.0
"""AdamW with its states in host memory and its update on the host (ZeRO-Offload, Ren et al., arXiv:2101.06840).

The device keeps 16-bit weights, and gradients unless they are streamed to the host too; masters and moments, 12 bytes a
parameter, and the work on them are the host's. With ZeRO-1 each rank's host has what the rank owns. Wider weights are
their own master, as on the device, and travel both ways. The numbers are those of `MixedPrecisionAdamW`, on the CPU to
the bit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from megatron_core.config.optim import OptimConfig
from megatron_core.kernels.precision import wide_dtype
from megatron_core.optim.adamw import AdamHyper, Moments
from megatron_core.optim.host_adamw import HostAdamW, compiled_pass
from megatron_core.optim.host_memory import host_zeros
from megatron_core.optim.host_transfers import HostTransfers
from megatron_core.optim.mixed_precision import BucketState, Flat
from megatron_core.parallel.host_copies import CudaCopies


class HostOffloadAdamW:
    """The optimizer of one rank, in the shape of `MixedPrecisionAdamW`."""

    def __init__(
        self,
        buckets: Sequence[Flat],
        config: OptimConfig,
        *,
        threads: int,
        directory: Path | None = None,
        with_masters: bool = False,
        on_return: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`threads` update; `directory`: where on a disk the states go, in memory if None. Raises as `host_zeros`.

        with_masters: of wide weights too, so that masters can be ahead of them. on_return: told each bucket's number
        when its weights are updated and back on the device.
        """
        hyper = AdamHyper(config.adam_beta1, config.adam_beta2, config.adam_eps)
        self._adam = HostAdamW(hyper, threads=threads, kernel=compiled_pass())
        self._on_return = on_return
        self.states = _states(buckets, directory, with_masters=with_masters)
        """One a bucket, in the order of the buckets: what checkpoints save and load."""
        self._transfers = _transfers(self.states, on_return)

    def step(self, *, applied_steps: int, lr: float, weight_decay: float, grad_factor: float) -> None:
        """Update all weights. Gradients are multiplied by `grad_factor` (clipping, loss scale, token count)."""
        # The transfers come first, so that they are asked once more after the last bucket and can finish its return.
        for (grad, weights), state in zip(self._on_host(), self.states, strict=True):
            narrow = wide_dtype(weights.dtype) != weights.dtype
            self._adam.update(
                state.master if state.has_master else weights,
                grad,
                state.moments,
                weights if narrow else None,
                applied_steps=applied_steps,
                lr=lr,
                weight_decay=weight_decay if state.bucket.decayed else 0.0,
                grad_factor=grad_factor,
            )
            if state.has_master and not narrow:
                weights.copy_(state.master)

    def update_masters(
        self,
        grads: Sequence[torch.Tensor],
        *,
        applied_steps: int,
        lr: float,
        weight_decay: float,
        grad_factor: float,
    ) -> None:
        """`step` by gradients of the host, one a bucket, which leaves the weights as they are; on any one thread."""
        for grad, state in zip(grads, self.states, strict=True):
            assert state.has_master, "there is nothing to update but the weights themselves"
            self._adam.update(
                state.master,
                grad,
                state.moments,
                None,
                applied_steps=applied_steps,
                lr=lr,
                weight_decay=weight_decay if state.bucket.decayed else 0.0,
                grad_factor=grad_factor,
            )

    def return_weights(self) -> None:
        """Make the weights those of the masters."""
        if self._transfers is not None:
            self._transfers.give([state.master for state in self.states])
            return
        for number, state in enumerate(self.states):
            state.bucket.owned_weights.copy_(state.master)
            self._on_return(number)

    def start_anew(self) -> None:
        """Take the present weights as the new masters and forget the moments: after weights alone were loaded."""
        for state in self.states:
            state.moments.m.zero_()
            state.moments.v.zero_()
            if state.has_master:
                state.master.copy_(state.bucket.owned_weights)

    def close(self) -> None:
        """End the threads."""
        self._adam.close()

    def _on_host(self) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Each bucket's gradients and weights, where the host can work on them."""
        return self._in_place() if self._transfers is None else self._transfers.each()

    def _in_place(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number, state in enumerate(self.states):
            yield state.bucket.owned_grads, state.bucket.owned_weights
            self._on_return(number)


def _transfers(states: Sequence[BucketState], on_return: Callable[[int], None]) -> HostTransfers | None:
    """None where the device is the host."""
    if not states or states[0].bucket.owned_weights.device.type == "cpu":
        return None
    device = states[0].bucket.owned_weights.device
    return HostTransfers(
        [state.bucket for state in states],
        CudaCopies(device),
        CudaCopies(device),
        with_weights=not states[0].has_master,
        pinned=True,
        on_return=on_return,
    )


def _states(buckets: Sequence[Flat], directory: Path | None, *, with_masters: bool) -> list[BucketState]:
    """Zero moments, and masters of 16-bit weights at least, one after the other in the order of the pass over them."""
    if not buckets:
        return []
    dtype = buckets[0].owned_weights.dtype
    assert all(bucket.owned_weights.dtype == dtype for bucket in buckets), "a run's weights are of one dtype"
    wide = wide_dtype(dtype)
    tensors = 3 if with_masters or wide != dtype else 2
    flats = iter(host_zeros([len(bucket.owned_weights) for bucket in buckets for _ in range(tensors)], wide, directory))
    return [_state(bucket, flats, has_master=tensors == 3) for bucket in buckets]


def _state(bucket: Flat, flats: Iterator[torch.Tensor], *, has_master: bool) -> BucketState:
    moments = Moments(next(flats), next(flats))
    master = next(flats).copy_(bucket.owned_weights) if has_master else bucket.owned_weights
    return BucketState(bucket, master, moments)
