# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.errors import DataError
from tools.run_command import run_command


def test_what_is_done_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(lambda: None) == 0
    assert capsys.readouterr() == ("", "")


def test_what_the_user_can_mend_is_a_line_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise DataError("no such file")

    assert run_command(fails) == 2
    assert capsys.readouterr() == ("", "error: no such file\n")


def test_an_interruption_is_said_and_130(capsys: pytest.CaptureFixture[str]) -> None:
    def stops() -> None:
        raise KeyboardInterrupt

    assert run_command(stops, interrupted="interrupted: nothing was written") == 130
    assert capsys.readouterr().err == "interrupted: nothing was written\n"


def test_bugs_show_themselves() -> None:
    def breaks() -> None:
        raise AssertionError

    with pytest.raises(AssertionError):
        run_command(breaks)
