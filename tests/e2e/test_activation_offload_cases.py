# SPDX-License-Identifier: Apache-2.0
"""Runs whose activations wait in host memory train like one process that keeps them, at every kind of layout."""

import pytest

from tests.e2e.proof import FAMILIES, assert_equal, reference, train_rank
from tests.rank_pool import run_ranks

AWAY = "--min-offloaded-tensor-size 1 --cpu-offloading-num-layers"
FULL = "--recompute-granularity full"
ALL_MODULES = "--recompute-granularity selective --recompute-modules core_attn mlp layernorm"
ZERO_BUBBLE = "--pipeline-schedule zero-bubble"
INTERLEAVED = "--num-virtual-stages-per-pipeline-rank 2"
TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"

CASES = {
    "tp2-sp-pp2-dp2-zero1": (
        "dropout",
        8,
        f"{TP2} {PP2} --sequence-parallel --use-distributed-optimizer --overlap-param-gather {AWAY} 1",
        "--global-batch-size 4",
    ),
    "more-than-a-chunk-has-modules-interleaved": (
        "gpt2",
        2,
        f"{PP2} {INTERLEAVED} {ALL_MODULES} {AWAY} 2",
        "--num-layers 5 --global-batch-size 3",
    ),
    "full-zero-bubble-tp2-sp": (
        "dropout",
        4,
        f"{TP2} {PP2} --sequence-parallel {ZERO_BUBBLE} {FULL} {AWAY} 2",
        "--global-batch-size 4",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_trains_like_one_process_that_keeps_everything(case: str) -> None:
    family, world_size, layout, model = CASES[case]
    flags = f"{FAMILIES[family]} {model} --fp64"
    curve = run_ranks(train_rank, world_size, f"{flags} {layout}", 4)[0]
    assert_equal(curve, reference(flags, 4))


def test_the_bits_are_those_of_the_same_run_without() -> None:
    """In bf16 with dropout, through whole optimizer steps."""
    flags = f"{FAMILIES['dropout']} --global-batch-size 4 --bf16 {PP2} {ZERO_BUBBLE}"
    plain, away = (run_ranks(train_rank, 2, f"{flags} {more}", 3)[0] for more in ("", f"{AWAY} 1"))
    assert away.losses == plain.losses and away.norms == plain.norms
    assert all((away.weights[name] == weight).all() for name, weight in plain.weights.items())
