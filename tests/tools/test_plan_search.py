# SPDX-License-Identifier: Apache-2.0
"""What a search prints: a table, flags that our command line takes, and where the gain comes from."""

import shlex

import pytest

from megatron_core.config.cli import parse
from tools import plan

RUN = shlex.split(
    "--num-layers 16 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 "
    "--max-position-embeddings 2048 --vocab-size 50257 --global-batch-size 32 --bf16"
)
OWN = shlex.split("--micro-batch-size 1 --tensor-model-parallel-size 8 --recompute-granularity full")
MACHINE = ["--hardware", "dgx-a100-80", "--nodes", "1"]
TRAINING = ["--lr", "1e-4", "--train-iters", "10", "--mock-data"]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert plan.main(["search", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_flags_give_the_first_layout(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, *MACHINE, *RUN, *OWN, "--show", "3")
    header = next(number for number, line in enumerate(lines) if line.split()[:1] == ["s/step"])
    first = lines[header + 1]
    assert lines[header + 4] == ""
    start = next(number for number, line in enumerate(lines) if line.startswith("flags of the first"))
    words = [word for line in lines[start + 1 :] if line.startswith("    ") for word in line.split()]
    for own in (OWN, []):
        parallel = parse([*TRAINING, *RUN, *own, *words], 8).config.parallel
        assert f"tp {parallel.tensor_model_parallel_size} x pp {parallel.pipeline_model_parallel_size} " in first
        assert f"recompute {parallel.recompute_granularity or 'nothing'}" in first


def test_the_gain_over_the_file_s_own_layout_is_split(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, *MACHINE, *RUN, *OWN)
    start = next(number for number, line in enumerate(lines) if line.startswith("the file's own layout takes"))
    assert "throughput by" in lines[start]
    assert any("selective recomputation" in line or "recomputation of nothing" in line for line in lines[start:])


def test_without_a_layout_of_its_own_there_is_nothing_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert not any("own layout" in line for line in printed(capsys, *MACHINE, *RUN))


def test_a_model_that_fits_nowhere_is_told_with_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    words = " ".join(RUN).replace("--num-layers 16 --hidden-size 4096", "--num-layers 105 --hidden-size 20480").split()
    assert plan.main(["search", "--hardware", "dgx-a100-80", "--devices", "1", *words]) == 2
    assert "no layout fits" in capsys.readouterr().err
