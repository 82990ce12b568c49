# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.arguments import Argument, split_arguments
from megatron_core.errors import ConfigError


def test_values_are_the_words_up_to_the_next_flag():
    got = split_arguments(["--data-path", "0.5", "a", "--lr", "-1e-3", "--bf16"])
    assert got == (
        Argument("--data-path", "data-path", ("0.5", "a")),
        Argument("--lr", "lr", ("-1e-3",)),
        Argument("--bf16", "bf16", ()),
    )


def test_equals_sign_and_underscores():
    got = split_arguments(["--data_path=a=b", "c", "--override-opt_param-scheduler"])
    assert got == (
        Argument("--data_path", "data-path", ("a=b", "c")),
        Argument("--override-opt_param-scheduler", "override-opt-param-scheduler", ()),
    )


def test_words_before_any_flag_are_an_error():
    with pytest.raises(ConfigError, match=r"'train.yaml' stands before any flag; .*--config"):
        split_arguments(["train.yaml", "--bf16"])
