# SPDX-License-Identifier: Apache-2.0
import sys

import pytest

from megatron_core.training.console import set_up_console


def test_rank_0_speaks_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    logger = set_up_console(rank=0)
    logger.info("step %d", 1)
    logger.warning("spike")
    assert capsys.readouterr().out == "step 1\nwarning: spike\n"


def test_others_speak_in_trouble_alone_and_sign(capsys: pytest.CaptureFixture[str]) -> None:
    logger = set_up_console(rank=3)
    logger.info("step 1")
    logger.error("lost its peer")
    assert capsys.readouterr().out == "[rank 3] error: lost its peer\n"


def test_setting_up_twice_does_not_double_lines(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_console(rank=0)
    set_up_console(rank=0).info("once")
    assert capsys.readouterr().out == "once\n"


def test_another_stream(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_console(0, sys.stderr).info("aside")
    assert capsys.readouterr() == ("", "aside\n")
