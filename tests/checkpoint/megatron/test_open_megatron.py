# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from megatron_core.checkpoint.megatron.open_megatron import TRACKER, iteration_directory, open_megatron
from megatron_core.errors import CheckpointError
from tests.checkpoint.megatron.trees import weights, write_legacy, write_torch_dist
from tests.small_model import small


def test_the_tracker_names_the_directory(tmp_path: Path) -> None:
    assert iteration_directory(tmp_path) == tmp_path
    for text, name in (("1000", "iter_0001000"), ("12\n", "iter_0000012"), ("release", "release")):
        (tmp_path / TRACKER).write_text(text)
        assert iteration_directory(tmp_path) == tmp_path / name
    for text in ("", "../..", "-1", "1e3", "²"):
        (tmp_path / TRACKER).write_text(text)
        with pytest.raises(CheckpointError, match="neither the number of an iteration"):
            iteration_directory(tmp_path)


def test_both_forms_are_known_by_what_lies_there(tmp_path: Path) -> None:
    config = small()
    write_legacy(tmp_path / "a", weights(config), config)
    write_torch_dist(tmp_path / "b", weights(config), config, common=True)
    assert "version 3" in open_megatron(tmp_path / "a").origin
    assert "torch_dist" in open_megatron(tmp_path / "b").origin
    with pytest.raises(CheckpointError, match=f"holds no checkpoint of Megatron-LM: neither {TRACKER}"):
        open_megatron(tmp_path)
    (tmp_path / TRACKER).write_text("7")
    with pytest.raises(CheckpointError, match=r"cannot list .*iter_0000007"):
        open_megatron(tmp_path)
