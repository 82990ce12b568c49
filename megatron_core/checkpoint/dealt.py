# SPDX-License-Identifier: Apache-2.0
"""What this rank writes of what it holds, so that each byte of the model is written once and all ranks finish together.

Of a tensor that several places of tp x pp hold, one counts; what the dp replicas of that place hold alike, they share.
"""

from collections.abc import Sequence

from megatron_core.checkpoint.held import Held
from megatron_core.checkpoint.shard_map import Part, deal
from megatron_core.checkpoint.writer import Shard
from megatron_core.parallel.context import Group


def dealt_shards(held: Sequence[Held], dp: Group) -> list[Shard]:
    """This rank's share; `held` is alike on all members of `dp`. Values are views of the held ones."""
    by_name = {tensor.name: tensor for tensor in held if tensor.counted}
    parts = [
        Part(name=tensor.name, rectangle=tensor.rectangle, itemsize=tensor.values.element_size())
        for tensor in by_name.values()
    ]
    # What one replica alone owned would be written by it, and its bytes stand here; nothing is yet.
    owned_bytes = [0] * dp.size
    mine = deal(parts, owned_bytes)[dp.coordinate]
    return [_shard(by_name[part.name], part) for part in mine]


def _shard(tensor: Held, part: Part) -> Shard:
    values = tensor.values.detach()[part.rectangle.slices(tensor.rectangle.start)]
    return Shard(name=tensor.name, shape=tensor.shape, rectangle=part.rectangle, values=values)
