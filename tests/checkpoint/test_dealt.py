# SPDX-License-Identifier: Apache-2.0
import torch

from megatron_core.checkpoint.dealt import dealt_shards
from megatron_core.checkpoint.held import Held
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.parallel.context import Group


def _held(name: str, rows: int, *, counted: bool = True, replicated: bool = True) -> Held:
    """The last `rows` of 100 rows of 10."""
    rectangle = Rectangle((100 - rows, 0), (100, 10))
    values = torch.arange(1000.0).view(100, 10)[100 - rows :]
    return Held(name=name, shape=(100, 10), rectangle=rectangle, values=values, counted=counted, replicated=replicated)


def _dealt(held: list[Held], replicas: int) -> list[list[tuple[str, Rectangle]]]:
    groups = [Group("dp", tuple(range(replicas)), coordinate) for coordinate in range(replicas)]
    return [[(shard.name, shard.rectangle) for shard in dealt_shards(held, group)] for group in groups]


def test_replicas_share_what_is_counted() -> None:
    held = [_held("a", 50), _held("b", 50), _held("c", 20), _held("c2", 20), _held("other rank's", 9, counted=False)]
    first, second = _dealt(held, 2)
    assert sorted([*first, *second]) == sorted((t.name, t.rectangle) for t in held if t.counted)
    assert sum(r.volume for _, r in first) == sum(r.volume for _, r in second)


def test_what_a_replica_alone_holds_it_writes_itself() -> None:
    alone = [_held("m", 20, replicated=False), _held("m", 10, replicated=False)]
    other = _held("other rank's", 9, counted=False, replicated=False)
    shards = dealt_shards([*alone, other, _held("a", 30)], Group("dp", (0, 1), 1))
    assert [(shard.name, shard.rectangle) for shard in shards][:2] == [(t.name, t.rectangle) for t in alone]
    assert {shard.name for shard in shards} <= {"m", "a"}


def test_a_large_tensor_is_cut() -> None:
    """100 MiB for two: no rank writes more than 64 of it."""
    values = torch.empty(100, 2**18)
    everything = Rectangle((0, 0), (100, 2**18))
    held = [Held(name="w", shape=(100, 2**18), rectangle=everything, values=values, counted=True, replicated=True)]
    assert _dealt(held, 2) == [
        [("w", Rectangle((0, 0), (64, 2**18)))],
        [("w", Rectangle((64, 0), (100, 2**18)))],
    ]


def test_values_are_views_at_the_right_place() -> None:
    (shard,) = dealt_shards([_held("a", 30)], Group("dp", (0,), 0))
    assert torch.equal(shard.values, torch.arange(1000.0).view(100, 10)[shard.rectangle.slices((0, 0))])
    shard.values.zero_()
    assert shard.shape == (100, 10)


def test_a_number_alone() -> None:
    values = torch.tensor(3.0)
    held = [Held(name="x", shape=(), rectangle=Rectangle((), ()), values=values, counted=True, replicated=True)]
    assert _dealt(held, 2) == [[("x", Rectangle((), ()))], []]
