# SPDX-License-Identifier: Apache-2.0
import logging

import pytest

from megatron_core.training.describe import count_parameters, describe
from tests.e2e.proof import FAMILIES, start_rank
from tests.rank_pool import run_ranks

GPT2 = FAMILIES["gpt2"]


def test_layout_stages_and_length_are_said(caplog: pytest.LogCaptureFixture) -> None:
    run, _ = start_rank(0, 1, GPT2)
    with caplog.at_level(logging.INFO, "megatron_core"):
        describe(run, 1.25)
    text = caplog.text
    assert "layout tp 1 x pp 1 x dp 1 (1f1b) on cpu, fp32" in text and "10 steps, 80 samples of 16 tokens" in text
    assert "vocabulary 61; ready after 1.2 s" in text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", ""),
        ("--optimizer-cpu-offload", "gradients accumulate on the host: a rank has 0.000 GB of them there and 0.000 GB"),
        ("--optimizer-cpu-offload --offload-gradients device", "gradients accumulate on the device: a rank has"),
    ],
)
def test_where_gradients_accumulate_is_said(caplog: pytest.LogCaptureFixture, flags: str, said: str) -> None:
    run, _ = start_rank(0, 1, f"{GPT2} {flags}")
    with caplog.at_level(logging.INFO, "megatron_core"):
        describe(run, 1.25)
    assert said in caplog.text if said else "gradients" not in caplog.text


def count(rank: int, world_size: int, flags: str) -> int:
    return count_parameters(start_rank(rank, world_size, flags)[0])


def test_every_parameter_counts_once_at_any_layout() -> None:
    alone = count(0, 1, GPT2)
    assert alone == 61 * 32 + 16 * 32 + 4 * (12 * 32 * 32 + 13 * 32) + 2 * 32
    layout = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    assert run_ranks(count, 4, f"{GPT2} {layout}") == [alone] * 4
