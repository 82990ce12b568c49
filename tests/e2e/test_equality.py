# SPDX-License-Identifier: Apache-2.0
"""Every layout trains like one process: 10 steps in float64, losses, gradient norms and gathered weights to 1e-10.

The default suite runs a set of cases in which every feature meets every axis; `slow` runs the whole product.
"""

import itertools
from pathlib import Path

import pytest

from tests.e2e.proof import FAMILIES, assert_equal, documents, reference, train_rank
from tests.rank_pool import run_ranks


def layout_flags(tp: int, pp: int, *, sp: bool = False, more: str = "") -> str:
    return (
        f"--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} "
        f"{'--sequence-parallel' if sp else ''} {more}"
    )


def family_flags(name: str, folder: Path) -> str:
    return documents(folder) if name == "documents" else FAMILIES[name]


def prove(family: str, world_size: int, layout: str, model: str = "", *, rtol: float = 1e-10) -> None:
    """`model`: flags that the reference gets too."""
    expected = reference(f"{family} {model} --fp64")
    curve = run_ranks(train_rank, world_size, f"{family} {model} --fp64 {layout}", 10)[0]
    assert_equal(curve, expected, curve_rtol=rtol, weight_rtol=rtol)


INTERLEAVED = "--num-virtual-stages-per-pipeline-rank 2"
ZERO_BUBBLE = "--pipeline-schedule zero-bubble"
GPIPE = "--pipeline-schedule gpipe"

HOST = "--optimizer-cpu-offload --offload-gradients host"
ZERO_HOST = f"--use-distributed-optimizer --overlap-param-gather {HOST}"

BATCH_4 = "--global-batch-size 4"  # half the collectives of SMALL: on oversubscribed cores each takes milliseconds

COVERING = {
    "tp2-pp2-dp2-sp": ("gpt2", 8, layout_flags(2, 2, sp=True), BATCH_4),
    "tp2-pp2-dp2-interleaved": ("llama", 8, layout_flags(2, 2, more=INTERLEAVED), BATCH_4),
    "pp4-dp2-zero-bubble-tied": ("gpt2", 8, layout_flags(1, 4, more=ZERO_BUBBLE), ""),
    "tp4-dp2-sp-groups-below-tp": ("llama", 8, layout_flags(4, 1, sp=True), "--global-batch-size 2 --num-layers 2"),
    "tp4-pp2-one-group-qk-norm": ("qk", 8, layout_flags(4, 2), "--global-batch-size 2 --num-layers 2"),
    "tp2-pp2-dp2-dropout-interleaved-sp": ("dropout", 8, layout_flags(2, 2, sp=True, more=INTERLEAVED), BATCH_4),
    "tp2-pp2-documents-zero-bubble-sp": ("documents", 4, layout_flags(2, 2, sp=True, more=ZERO_BUBBLE), BATCH_4),
    "tp2-pp2-stable-gpipe-sp": ("stable", 4, layout_flags(2, 2, sp=True, more=GPIPE), BATCH_4),
    "tp2-pp2-parallel-residual-sp": ("llama", 4, layout_flags(2, 2, sp=True), f"{BATCH_4} --use-parallel-residual"),
    "pp2-interleaved-5-layers-m-3": (
        "gpt2",
        4,
        layout_flags(1, 2, more=INTERLEAVED),
        "--num-layers 5 --global-batch-size 6",
    ),
    "pp4-7-layers-m-3": ("llama", 4, layout_flags(1, 4), "--num-layers 7 --global-batch-size 3"),
    "pp2-by-cost-m-1": ("gpt2", 2, layout_flags(1, 2, more="--pipeline-split cost"), "--global-batch-size 1"),
    "dp4-microbatch-2": ("qk", 4, "--micro-batch-size 2", "--num-layers 2"),
    "pp1-v2": (
        "dropout",
        1,
        "--pipeline-schedule interleaved --num-virtual-stages-per-pipeline-rank 2",
        "--num-layers 2 --global-batch-size 2",
    ),
    "tp2-pp2-dp2-sp-zero-tied": (
        "gpt2",
        8,
        layout_flags(2, 2, sp=True, more="--use-distributed-optimizer --overlap-param-gather"),
        f"{BATCH_4} --make-vocab-size-divisible-by 128",
    ),
    "pp2-dp2-zero-interleaved-dropout": (
        "dropout",
        4,
        layout_flags(1, 2, more=f"{INTERLEAVED} --use-distributed-optimizer"),
        BATCH_4,
    ),
    "tp2-dp2-zero-offload": (
        "gpt2",
        4,
        layout_flags(2, 1, more="--use-distributed-optimizer --overlap-param-gather --optimizer-cpu-offload"),
        BATCH_4,
    ),
    "tp2-pp2-dp2-sp-zero-host-full-recompute": (
        "gpt2",
        8,
        layout_flags(2, 2, sp=True, more=f"{ZERO_HOST} --recompute-granularity full"),
        BATCH_4,
    ),
    "tp2-pp2-dp2-zero-host-selective-recompute": (
        "dropout",
        8,
        layout_flags(2, 2, more=f"{INTERLEAVED} {ZERO_HOST} --recompute-granularity selective"),
        BATCH_4,
    ),
    "pp2-dp2-host-zero-bubble": ("llama", 4, layout_flags(1, 2, more=f"{ZERO_BUBBLE} {HOST}"), BATCH_4),
    "tp4-host-groups-below-tp": (
        "llama",
        4,
        layout_flags(4, 1, sp=True, more=f"{HOST} --recompute-granularity full"),
        "--global-batch-size 2 --num-layers 2",
    ),
    "pp2-dp2-zero-offload": (
        "gpt2",
        4,
        layout_flags(1, 2, more="--use-distributed-optimizer --optimizer-cpu-offload"),
        BATCH_4,
    ),
    "dp4-zero-odd-shares": ("llama", 4, "--use-distributed-optimizer --overlap-param-gather", BATCH_4),
    "tp-pp-dp-order": ("gpt2", 8, layout_flags(2, 2, more="--use-tp-pp-dp-mapping"), BATCH_4),
}


@pytest.mark.parametrize("case", COVERING)
def test_covering(case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    name, world_size, layout, model = COVERING[case]
    prove(family_flags(name, tmp_path_factory.getbasetemp()), world_size, layout, model)


SCHEDULES = {"1f1b": "", "gpipe": GPIPE, "zero-bubble": ZERO_BUBBLE, "interleaved": INTERLEAVED}


def product() -> list[tuple[str, int, int, int, bool, str]]:
    """(family, tp, pp, dp, sequence parallel, schedule): all layouts of up to 8 ranks but the reference itself."""
    cases = []
    for family in (*FAMILIES, "documents"):
        for tp, pp, dp, sp in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4), (False, True)):
            if 1 < tp * pp * dp <= 8 and not (sp and tp == 1):
                cases += [(family, tp, pp, dp, sp, name) for name in (SCHEDULES if pp > 1 else ["1f1b"])]
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("case", product(), ids=lambda case: "-".join(map(str, case)))
def test_product(case: tuple[str, int, int, int, bool, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    family, tp, pp, dp, sp, schedule = case
    # Three microbatches a rank: a number that neither p = 2 nor p = 4 divides. More would only take longer.
    model = f"--global-batch-size {(3 if pp > 1 else 2) * dp} {'--num-layers 8' if schedule == 'interleaved' else ''}"
    prove(
        family_flags(family, tmp_path_factory.getbasetemp()),
        tp * pp * dp,
        layout_flags(tp, pp, sp=sp, more=SCHEDULES[schedule]),
        model,
    )


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_single_precision_keeps_designs_tolerances(family: str) -> None:
    # An epsilon above the rounding of a gradient: else Adam makes whole steps of gradients that are rounding alone, and
    # which those are depends on the CPU.
    flags = f"{FAMILIES[family]} {BATCH_4} --adam-eps 1e-6"
    expected = reference(flags)
    curve = run_ranks(train_rank, 2, f"{flags} {layout_flags(2, 1, sp=True)}", 10)[0]
    for weights in (curve.weights, expected.weights):
        # A key's bias shifts all scores of a query alike, so that softmax drops it: its gradient is exactly zero, what
        # is computed is rounding alone, and Adam scales that up. Only the value's half [g, 1, d] is determined.
        weights.update({name: w[:, 1] for name, w in weights.items() if name.endswith("kv.bias") and w.ndim == 3})
    assert_equal(curve, expected, curve_rtol=1e-5, weight_rtol=1e-4)


@pytest.mark.parametrize("precision", ["--bf16", "--fp16 --initial-loss-scale 1024"])
def test_16_bit_follows_single_precision(precision: str) -> None:
    flags = f"{FAMILIES['gpt2']} {BATCH_4}"
    expected = reference(flags)
    curve = run_ranks(train_rank, 2, f"{flags} {layout_flags(1, 2)} {precision}", 10)[0]
    for got, want in zip([*curve.losses, *curve.norms], [*expected.losses, *expected.norms]):
        assert got == pytest.approx(want, rel=0.02)
