# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from tests.e2e.proof import FAMILIES, start_rank, whole_weights
from tests.rank_pool import run_ranks

LLAMA = f"{FAMILIES['llama']} --num-query-groups 2"
LAYOUTS = {
    "tp4-fewer-groups-than-ranks": (4, "--tensor-model-parallel-size 4"),
    "pp2-interleaved": (2, "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"),
    "tp2-pp2-dp2-padded": (
        8,
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --make-vocab-size-divisible-by 128",
    ),
    "other-rank-order": (4, "--tensor-model-parallel-size 2 --use-tp-pp-dp-mapping"),
}


def weights_of(rank: int, world_size: int, flags: str) -> dict[str, np.ndarray] | None:
    weights = whole_weights(start_rank(rank, world_size, flags)[0])
    return None if weights is None else {name: tensor.numpy() for name, tensor in weights.items()}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rank_0_gets_every_tensor_whole(layout: str, family: str) -> None:
    """True vocabulary, all layers, tied tables once; no other rank gets anything."""
    flags = LLAMA if family == "llama" else FAMILIES[family]
    expected = weights_of(0, 1, flags)
    world_size, more = LAYOUTS[layout]
    found, *others = run_ranks(weights_of, world_size, f"{flags} {more}")
    assert others == [None] * (world_size - 1)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert np.array_equal(found[name], tensor), name
    assert found["embedding.tokens.weight"].shape == (61, 32)
    assert ("head.weight" in found) == (family == "llama")
