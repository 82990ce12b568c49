# SPDX-License-Identifier: Apache-2.0
"""Runs that recompute train like one process that keeps everything, at every kind of layout and schedule.

A bucket counts the contributions of a step, and asserts that there is none too many: a recomputation that added a
gradient twice would end these runs.
"""

import pytest

from tests.e2e.proof import FAMILIES, assert_equal, reference, train_rank
from tests.rank_pool import run_ranks

FULL = "--recompute-granularity full --recompute-method uniform"
FIRST = "--recompute-granularity full --recompute-method block"
ALL_MODULES = "--recompute-granularity selective --recompute-modules core_attn mlp layernorm"
ZERO_BUBBLE = "--pipeline-schedule zero-bubble"
INTERLEAVED = "--num-virtual-stages-per-pipeline-rank 2"
TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"

CASES = {
    "full-tp2-sp-pp2-dp2-zero1": (
        "dropout",
        8,
        f"{TP2} {PP2} --sequence-parallel --use-distributed-optimizer --overlap-param-gather {FULL}",
        "--global-batch-size 4",
    ),
    "groups-of-2-uneven-interleaved": (
        "gpt2",
        2,
        f"{PP2} {INTERLEAVED} {FULL} --recompute-num-layers 2",
        "--num-layers 5 --global-batch-size 3",
    ),
    "first-of-each-chunk-tp2-pp2": ("llama", 4, f"{TP2} {PP2} {INTERLEAVED} {FIRST}", "--global-batch-size 3"),
    "modules-tp2-sp-pp2": ("dropout", 4, f"{TP2} {PP2} --sequence-parallel {ALL_MODULES}", "--global-batch-size 2"),
    "full-zero-bubble-tp2-sp": (
        "dropout",
        4,
        f"{TP2} {PP2} --sequence-parallel {ZERO_BUBBLE} {FULL}",
        "--global-batch-size 4",
    ),
    "modules-zero-bubble": ("qk", 2, f"{PP2} {ZERO_BUBBLE} {ALL_MODULES}", "--num-layers 2 --global-batch-size 4"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_trains_like_one_process_that_keeps_everything(case: str) -> None:
    family, world_size, layout, model = CASES[case]
    flags = f"{FAMILIES[family]} {model} --fp64"
    curve = run_ranks(train_rank, world_size, f"{flags} {layout}", 4)[0]
    assert_equal(curve, reference(flags, 4))


def test_the_bits_are_those_of_the_same_run_without() -> None:
    """In bf16 with dropout, through a whole optimizer step and back."""
    flags = f"{FAMILIES['dropout']} --global-batch-size 4 --num-layers 2 --bf16 {PP2} {ZERO_BUBBLE}"
    plain, again = (run_ranks(train_rank, 2, f"{flags} {more}", 3)[0] for more in ("", FULL))
    assert again.losses == plain.losses and again.norms == plain.norms
    assert all((again.weights[name] == weight).all() for name, weight in plain.weights.items())
