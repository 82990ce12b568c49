# SPDX-License-Identifier: Apache-2.0
"""What this rank writes of what it holds, so that each byte of the model is written once and all ranks finish together.

Of a tensor that several places of tp x pp hold, one counts; what the dp replicas of that place hold alike, they share.
"""

from collections.abc import Sequence

from megatron_core.checkpoint.held import Held
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.checkpoint.shard_map import Part, deal
from megatron_core.checkpoint.writer import Shard
from megatron_core.parallel.context import Group


def dealt_shards(held: Sequence[Held], dp: Group) -> list[Shard]:
    """This rank's share: what it alone holds, and its part of what all members of `dp` do, which is listed alike.

    Values are views of the held ones.
    """
    alone = [_shard(tensor, tensor.rectangle) for tensor in held if tensor.counted and not tensor.replicated]
    shared = {tensor.name: tensor for tensor in held if tensor.counted and tensor.replicated}
    parts = [
        Part(name=tensor.name, rectangle=tensor.rectangle, itemsize=tensor.values.element_size())
        for tensor in shared.values()
    ]
    mine = deal(parts, dp.size)[dp.coordinate]
    return alone + [_shard(shared[part.name], part.rectangle) for part in mine]


def _shard(tensor: Held, rectangle: Rectangle) -> Shard:
    values = tensor.values.detach()[rectangle.slices(tensor.rectangle.start)]
    return Shard(name=tensor.name, shape=tensor.shape, rectangle=rectangle, values=values)
