# SPDX-License-Identifier: Apache-2.0
import torch

from megatron_core.checkpoint.huggingface.link import by_ours, by_theirs, link
from megatron_core.checkpoint.rectangle import Rectangle

A, D, H = 3, 2, 5
# GPT-2's keys and values: columns of [h, 3 a d], ours [a, 2, d, h].
KV = link("kv", (A, 2, D, H), "c_attn", (H, 3 * A * D), seen=(H, 3, A, D), seen_rows=(1, 1, 3), order=(2, 1, 3, 0))
Q = link("q", (A, D, H), "c_attn", (H, 3 * A * D), seen=(H, 3, A, D), seen_rows=(1, 0, 1), order=(2, 1, 3, 0))
# Llama's values: a weight of their own, ours the second row of dim 1.
V = link("kv", (A, 2, D, H), "v", (A * D, H), ours_rows=(1, 1, 2))


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape)


def test_ours_is_filled_from_theirs() -> None:
    theirs, ours = numbers(H, 3 * A * D), torch.zeros(A, 2, D, H)
    KV.part_of_ours(ours).copy_(theirs.view(KV.seen)[:, 1:3])
    for head in range(A):
        for which in range(2):
            for d in range(D):
                column = theirs[:, (1 + which) * A * D + head * D + d]
                assert torch.equal(ours[head, which, d], column)


def test_theirs_is_filled_from_ours() -> None:
    theirs = torch.zeros(H, 3 * A * D)
    for item in (Q, KV):
        item.part_of_theirs(theirs).copy_(numbers(*item.ours_shape) + (100 if item is KV else 0))
    assert theirs[4, 1 * D + 1] == numbers(A, D, H)[1, 1, 4]
    assert theirs[4, 2 * A * D + 2 * D + 1] == 100 + numbers(A, 2, D, H)[2, 1, 1, 4]
    assert theirs.unique().numel() == theirs.numel()


def test_a_part_of_ours_is_a_whole_of_theirs() -> None:
    ours, theirs = torch.zeros(A, 2, D, H), numbers(A * D, H)
    assert (V.ours_at, V.seen) == (Rectangle((0, 1, 0, 0), (A, 2, D, H)), (A, 1, D, H))
    V.part_of_ours(ours).copy_(theirs.view(V.seen))
    assert torch.equal(ours[:, 1].reshape(A * D, H), theirs) and not ours[:, 0].any()
    back = torch.zeros(A * D, H)
    V.part_of_theirs(back).copy_(ours[:, 1:2])
    assert torch.equal(back, theirs)


def test_grouped_by_either_side() -> None:
    assert by_ours([Q, KV, V]) == {"q": [Q], "kv": [KV, V]}
    assert by_theirs([Q, KV, V]) == {"c_attn": [Q, KV], "v": [V]}
