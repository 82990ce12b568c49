# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from megatron_core.planner.collective_time import CollectiveTime
from megatron_core.planner.hardware import hardware
from tests.planner.test_kernel_time import PLAIN

SELENE = hardware("dgx-a100-80")
GB = 10**9


def test_a_group_in_a_node_goes_over_its_links() -> None:
    assert CollectiveTime(SELENE, PLAIN).all_reduce(3 * GB, 8, 1) == pytest.approx(2 * 7 / 8 * 3 / 300)


def test_groups_that_cross_nodes_share_the_cards() -> None:
    times = CollectiveTime(SELENE, PLAIN)
    assert times.gather(GB, 16, 1) == pytest.approx(15 / 16 / 200)  # one group has all eight cards
    assert times.gather(GB, 4, 2) == pytest.approx(3 / 4 / 300)  # still in one node
    assert times.gather(GB, 16, 8) == pytest.approx(15 / 16 / 25)  # eight groups, a card each


def test_measured_limits_of_a_fabric_hold() -> None:
    slow = CollectiveTime(hardware("jeanzay-a100"), PLAIN)
    assert slow.gather(GB, 8, 4) == pytest.approx(7 / 8 / (13.5 / 4))
    assert slow.gather(GB, 16, 1) == pytest.approx(15 / 16 / 5.1)


def test_hops_grow_with_a_ring_and_with_the_logarithm_of_a_tree() -> None:
    times = CollectiveTime(SELENE, dataclasses.replace(PLAIN, hop_s=1e-3))
    assert times.all_reduce(0, 8, 1) == pytest.approx(14e-3)
    assert times.all_reduce(0, 1024, 8) == pytest.approx(2 * (8 + 40) * 1e-3)


def test_a_group_of_one_has_nothing_to_say() -> None:
    assert CollectiveTime(SELENE, dataclasses.replace(PLAIN, hop_s=1.0)).all_reduce(GB, 1, 8) == 0.0


def test_stages_in_one_node_send_over_its_links_and_others_over_the_network() -> None:
    times = CollectiveTime(SELENE, PLAIN)
    assert times.send(GB, 8, 2, shared=False) == pytest.approx(1 / 300)
    assert times.send(GB, 16, 8, shared=False) == pytest.approx(1 / 25)
    # An eighth each over the network, gathered over the links.
    assert times.send(GB, 16, 8, shared=True) == pytest.approx(1 / 8 / 25 + 7 / 8 / 300)
