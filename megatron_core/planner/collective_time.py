# SPDX-License-Identifier: Apache-2.0
"""How long collectives take: bytes over the narrowest link on the way, and hops.

A group is `size` ranks, each `stride` apart. While it fits a node, NVLink carries it. Beyond, every node's cards are
shared by the groups that cross there at once: as many as the stride, up to all devices of the node.
"""

import math

from megatron_core.planner.constants import Constants
from megatron_core.planner.hardware import Hardware
from megatron_core.planner.operator_time import OperatorTime
from megatron_core.planner.work import Operator

_TREE_FROM = 64  # ranks from which libraries take trees, whose hops grow with the logarithm alone


class CollectiveTime:
    """Prices communication on one cluster."""

    def __init__(self, hardware: Hardware, constants: Constants) -> None:
        self._hardware, self._constants = hardware, constants
        self._measured = OperatorTime(hardware.device) if hardware.device.measured_operators else None

    def all_reduce(self, nbytes: float, size: int, stride: int) -> float:
        """Sum of so many bytes over a group: a reduce-scatter and an all-gather."""
        if self._measured is not None:
            return self._among(size, "all_reduce", nbytes)
        return 2 * self.gather(nbytes, size, stride)

    def reduce_scatter(self, nbytes: float, size: int, stride: int) -> float:
        """Of so many bytes. gloo, which is what was measured, makes an all-reduce of it."""
        if self._measured is not None:
            return self._among(size, "all_reduce", nbytes)
        return self.gather(nbytes, size, stride)

    def gather(self, nbytes: float, size: int, stride: int) -> float:
        """All-gather to so many bytes."""
        if self._measured is not None:
            return self._among(size, "all_gather", nbytes)
        if size == 1:
            return 0.0
        hops = size - 1 if size <= _TREE_FROM else self._hardware.devices_per_node + 4 * math.log2(size)
        return nbytes * (size - 1) / size / self._bandwidth(size, stride) + hops * self._constants.hop_s

    def send(self, nbytes: float, world: int, tp: int, *, shared: bool) -> float:
        """From one stage to the next; all tp ranks send the same, or with `shared` a part each, gathered on arrival."""
        if self._measured is not None:
            return self._among(2, "send", nbytes)
        if world <= self._hardware.devices_per_node:
            return nbytes / self._node_link + self._constants.hop_s
        parts = tp if shared else 1
        time = nbytes / parts / self._per_device + self._constants.hop_s
        return time + (self.gather(nbytes, tp, 1) if parts > 1 else 0.0)

    def _among(self, size: int, name: str, nbytes: float) -> float:
        """What was measured between two ranks, scaled to a ring of `size`: its bytes, and so its messages, grow."""
        assert self._measured is not None, "there are no measurements"
        if size == 1:
            return 0.0
        return 2 * (size - 1) / size * self._measured.of(Operator(name, round(nbytes)))

    @property
    def _node_link(self) -> float:
        return self._hardware.device.link_gb_per_s * 1e9 * self._constants.node_link_share

    @property
    def _per_device(self) -> float:
        """One device's share of its node's cards."""
        network = self._hardware.network_gb_per_s * 1e9 * self._constants.network_share
        return min(network, self._hardware.ring_gb_per_s * 1e9)

    def _bandwidth(self, size: int, stride: int) -> float:
        in_node = self._hardware.devices_per_node
        if size * stride <= in_node:
            return self._node_link
        cards = self._hardware.network_gb_per_s * 1e9 * self._constants.network_share * in_node
        together = min(cards, self._hardware.rings_gb_per_s * 1e9)
        return min(together / min(stride, in_node), self._node_link, self._hardware.ring_gb_per_s * 1e9)
