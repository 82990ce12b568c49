# SPDX-License-Identifier: Apache-2.0
"""A parameter from what each tensor-parallel rank has of it in a legacy checkpoint.

Since version 2.0 a shard is rows, columns or halves of the whole. Before, the rows of query, key and value lay in
another order within each shard, and it is taken apart by heads.
"""

from collections.abc import Iterator, Sequence

from megatron_core.checkpoint.megatron.file_tensor import FileTensor
from megatron_core.checkpoint.megatron.parameters import Parameter
from megatron_core.checkpoint.megatron.sharded import ShardedTensor
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.errors import CheckpointError

Piece = tuple[Rectangle, FileTensor]


def joined(name: str, parameter: Parameter, shards: Sequence[FileTensor], version: float) -> ShardedTensor:
    """The whole parameter. Raises CheckpointError where a shard has another shape than its rank's."""
    tp, origin = len(shards), str(shards[0].path.parent)
    if not parameter.divides_by(tp):
        raise CheckpointError(f"{origin}: {name} of shape {parameter.shape} cannot have been cut for {tp} ranks")
    pieces: list[Piece] = []
    for rank, shard in enumerate(shards):
        rectangles = parameter.shard(tp, rank)
        expected = (sum(rectangle.shape[0] for rectangle in rectangles), *rectangles[0].shape[1:])
        if shard.shape != expected:
            raise CheckpointError(f"{shard.path}: {name} has shape {shard.shape}, not {expected}")
        if version < 2 and len(parameter.parts) == 2:
            pieces += _old_heads(parameter, rectangles[0], shard, version)
        else:
            pieces += _stacked(rectangles, shard)
    if not parameter.whole:
        return ShardedTensor(name=name, shape=parameter.shape, pieces=pieces, origin=origin)
    first, *others = (
        ShardedTensor(name=name, shape=parameter.shape, pieces=[piece], origin=str(piece[1].path.parent))
        for piece in pieces
    )
    return ShardedTensor(name=name, shape=first.shape, pieces=first.pieces, origin=first.origin, copies=others)


def _stacked(rectangles: Sequence[Rectangle], shard: FileTensor) -> Iterator[Piece]:
    """A shard's rectangles lie in it one below the other."""
    row = 0
    for rectangle in rectangles:
        rows = slice(row, row + rectangle.shape[0])
        yield rectangle, shard.view(lambda t, rows=rows: t[rows])  # type: ignore[misc]
        row = rows.stop


def _old_heads(parameter: Parameter, rectangle: Rectangle, shard: FileTensor, version: float) -> Iterator[Piece]:
    """Rows of a head's query, key and value in a shard of version 0, [3, heads, d], or 1, [heads, d, 3]."""
    queries, kv = parameter.parts
    a, d = queries.shape[:2]
    if kv.shape[0] != a or rectangle.shape[0] % (3 * d):
        raise CheckpointError(f"{shard.path}: grouped or cut heads in version {version:g}, which had none")
    heads = rectangle.shape[0] // (3 * d)
    split = (3, heads, d) if version == 0 else (heads, d, 3)
    for head in range(heads):
        for kind in range(3):
            start = rectangle.start[0] + (3 * head + kind) * d
            index = (kind, head) if version == 0 else (head, slice(None), kind)
            yield (
                rectangle.rows(0, start, start + d),
                shard.view(lambda t, index=index: t.view(*split, *t.shape[1:])[index]),  # type: ignore[misc]
            )
