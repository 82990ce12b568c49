# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from megatron_core.checkpoint.megatron.legacy_files import legacy_files
from megatron_core.errors import CheckpointError


def make(root: Path, *names: str, file: str = "model_optim_rng.pt") -> None:
    for name in names:
        (root / name).mkdir()
        (root / name / file).touch()


def test_all_ranks_by_coordinates(tmp_path: Path) -> None:
    make(tmp_path, *(f"mp_rank_{t:02d}_{p:03d}" for t in range(2) for p in range(3)))
    (tmp_path / "notes").touch()
    found = legacy_files(tmp_path)
    assert (found.tp, found.pp) == (2, 3)
    assert found.paths[2, 1] == tmp_path / "mp_rank_01_002" / "model_optim_rng.pt"


def test_without_pipeline_and_with_the_weights_apart(tmp_path: Path) -> None:
    make(tmp_path, "mp_rank_00", "mp_rank_01", file="model_rng.pt")
    found = legacy_files(tmp_path)
    assert (found.tp, found.pp) == (2, 1) and found.paths[0, 1].name == "model_rng.pt"


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot list"):
        legacy_files(tmp_path / "none")
    with pytest.raises(CheckpointError, match="holds no mp_rank_"):
        legacy_files(tmp_path)
    make(tmp_path, "mp_rank_00_000", "mp_rank_01_000", "mp_rank_00_001")
    with pytest.raises(CheckpointError, match=r"has 3 of 4 ranks .* tensor rank 1, pipeline rank 1 is missing"):
        legacy_files(tmp_path)
    (tmp_path / "mp_rank_01_001").mkdir()
    with pytest.raises(CheckpointError, match=r"mp_rank_01_001 has no model_optim_rng\.pt"):
        legacy_files(tmp_path)
    make(tmp_path, "mp_rank_00_000_001")
    with pytest.raises(CheckpointError, match="expert-parallel"):
        legacy_files(tmp_path)
