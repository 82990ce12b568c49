# SPDX-License-Identifier: Apache-2.0
"""OPS-04: every column of metrics.jsonl is what happened, and the same at every layout."""

from pathlib import Path
from typing import Any

import pytest

from megatron_core.training.metrics import read_metrics
from tests.e2e.proof import FAMILIES, run_whole

# Without biases every gradient is determined: a key's bias has none but rounding, which num_zeros would count.
FLAGS = (
    f"{FAMILIES['gpt2']} --micro-batch-size 2 --eval-iters 1 --eval-interval 5 --lr-decay-style cosine "
    "--lr-warmup-iters 3 --log-params-norm --log-num-zeros-in-grad "
    "--untie-embeddings-and-output-weights --disable-bias-linear"
)
TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
LAYOUTS = {
    "tp2": (2, TP2, {"tp", "world"}),
    "pp2": (2, PP2, {"pp", "world"}),
    "dp2": (2, "", {"dp", "world"}),
    "tp2-pp2-sp": (4, f"{TP2} {PP2} --sequence-parallel", {"tp", "pp", "world"}),
}
"""Number of ranks, flags, and the axes on which they communicate in a step."""
MEASURED = {"step_time_s", "tokens_per_s", "tflops_per_device", "peak_memory_bytes", "mfu", "exposed_comm_s"}


def records(folder: Path, world_size: int, flags: str) -> list[dict[str, Any]]:
    run_whole(world_size, f"{flags} --save {folder}")
    return read_metrics(folder / "metrics.jsonl")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Ten steps of one process, with a validation after 5 and after 10, and the test set at the end."""
    return records(tmp_path_factory.mktemp("alone"), 1, FLAGS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_are_those_of_one_process(layout: str, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    world_size, more, axes = LAYOUTS[layout]
    found = records(tmp_path, world_size, f"{FLAGS} {more}")
    assert len(found) == 13 and [line.keys() for line in found] == [line.keys() for line in expected]
    for line, truth in zip(found, expected):
        for column in line.keys() - MEASURED:
            wanted = truth[column] if isinstance(truth[column], str) else pytest.approx(truth[column], rel=1e-5)
            assert line[column] == wanted, f"step {line['step']}: {column}"
        if "loss" in line:
            assert line["exposed_comm_s"].keys() == axes and truth["exposed_comm_s"] == {}


def test_columns_tell_what_was_asked_for(expected: list[dict[str, Any]]) -> None:
    steps = [line for line in expected if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 11))
    assert all(line["grad_norm"] > 0 and line["num_zeros"] > 0 and line["params_norm"] > 0 for line in steps)
    assert [line["consumed_samples"] for line in steps] == [8 * step for step in range(1, 11)]
    assert [line["consumed_tokens"] for line in steps] == [128 * step for step in range(1, 11)]
    evaluations = [(line["step"], line["validation_set"]) for line in expected if "validation_loss" in line]
    assert evaluations == [(5, "validation"), (10, "validation"), (10, "test")]
    assert steps[3]["lr"] == 1e-3 and steps[0]["lr"] == 0 and steps[9]["lr"] < 1e-4
    for line in steps:
        assert line["tokens_per_s"] == pytest.approx(128 / line["step_time_s"])
        assert line["mfu"] is None and line["loss_scale"] == 1 and not line["skipped"]
