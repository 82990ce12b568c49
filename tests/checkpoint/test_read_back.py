# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from megatron_core.checkpoint.read_back import read_back
from megatron_core.checkpoint.writer import write_rank_file
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint

NAME = "rank_00000.safetensors"


def test_a_good_file_passes(tmp_path: Path) -> None:
    read_back(tmp_path, write_rank_file(tmp_path, NAME, small_checkpoint.shards()[0]))


@pytest.mark.parametrize("byte", [12, -1])
def test_a_bit_that_flipped_on_the_way_is_found(tmp_path: Path, byte: int) -> None:
    written = write_rank_file(tmp_path, NAME, small_checkpoint.shards()[0])
    data = bytearray((tmp_path / NAME).read_bytes())
    data[byte] ^= 4
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{NAME}.* damaged"):
        read_back(tmp_path, written)


def test_a_file_that_vanished(tmp_path: Path) -> None:
    written = write_rank_file(tmp_path, NAME, small_checkpoint.shards()[0])
    (tmp_path / NAME).unlink()
    with pytest.raises(CheckpointError, match=f"cannot read .*{NAME}: No such file"):
        read_back(tmp_path, written)
