# SPDX-License-Identifier: Apache-2.0
import argparse

import pytest

from megatron_core.errors import DataError
from megatron_core.parallel.context import ParallelContext
from tools.model_ranks import add_layout_flags, run_on_ranks


def arguments_of(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_layout_flags(parser)
    return parser.parse_args(words)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_NODELIST"):
        monkeypatch.delenv(name, raising=False)


def test_a_rank_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[ParallelContext] = []
    assert run_on_ranks(arguments_of(), found.append) == 0
    assert found[0].grid.world_size == 1
    assert capsys.readouterr() == ("", "")


def fail(ctx: ParallelContext) -> None:
    raise DataError("no such thing")


def interrupt(ctx: ParallelContext) -> None:
    raise KeyboardInterrupt


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_on_ranks(arguments_of(), fail) == 2
    assert capsys.readouterr().err == "error: no such thing\n"
    assert run_on_ranks(arguments_of(), interrupt) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pipeline-model-parallel-size", "0"), "--pipeline-model-parallel-size is 0; it must be at least 1"),
        (("--pipeline-model-parallel-size", "3"), "1 ranks are no multiple of tp 1 x pp 3 = 3: start with torchrun"),
        (("--distributed-timeout-minutes", "nan"), "--distributed-timeout-minutes is nan; it must be above 0"),
    ],
)
def test_a_layout_that_cannot_be(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_on_ranks(arguments_of(*words), fail) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
