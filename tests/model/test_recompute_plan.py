# SPDX-License-Identifier: Apache-2.0
"""Which layers of a chunk run again, in which groups."""

import pytest

from megatron_core.config.parallel import ParallelConfig
from megatron_core.model.recompute_plan import LayerGroup, RecomputePlan


def groups(count: int, method: str | None, n: int = 1) -> list[tuple[int, int, bool]]:
    plan = RecomputePlan(method=method, num_layers=n)
    return [(group.layers.start, group.layers.stop, group.recomputed) for group in plan.groups(count)]


@pytest.mark.parametrize(
    ("count", "method", "n", "expected"),
    [
        (3, None, 1, [(0, 1, False), (1, 2, False), (2, 3, False)]),
        (3, "uniform", 1, [(0, 1, True), (1, 2, True), (2, 3, True)]),
        (5, "uniform", 2, [(0, 2, True), (2, 4, True), (4, 5, True)]),
        (2, "uniform", 9, [(0, 2, True)]),
        (3, "block", 1, [(0, 1, True), (1, 2, False), (2, 3, False)]),
        (3, "block", 2, [(0, 1, True), (1, 2, True), (2, 3, False)]),
        (2, "block", 9, [(0, 1, True), (1, 2, True)]),
        (0, "uniform", 1, []),
        (0, "block", 1, []),
    ],
)
def test_groups(count: int, method: str | None, n: int, expected: list[tuple[int, int, bool]]) -> None:
    assert groups(count, method, n) == expected


@pytest.mark.parametrize("method", [None, "uniform", "block"])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_every_layer_runs_once_in_order(method: str | None, n: int) -> None:
    for count in range(8):
        plan = RecomputePlan(method=method, num_layers=n)
        assert [layer for group in plan.groups(count) for layer in group.layers] == list(range(count))


def test_plans_of_configs() -> None:
    assert RecomputePlan.of(ParallelConfig()).groups(2) == (
        LayerGroup(range(1), recomputed=False),
        LayerGroup(range(1, 2), recomputed=False),
    )
    selective = RecomputePlan.of(ParallelConfig(recompute_granularity="selective"))
    assert selective == RecomputePlan(modules=frozenset({"core_attn"}))
    full = ParallelConfig(recompute_granularity="full", recompute_method="block", recompute_num_layers=2)
    assert RecomputePlan.of(full) == RecomputePlan(method="block", num_layers=2)
