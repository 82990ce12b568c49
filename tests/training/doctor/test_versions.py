# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy
import pytest
import torch

from megatron_core.training.doctor import versions
from megatron_core.training.doctor.versions import COMMIT, driver_version, git_commit, program_versions, source_hash


def test_what_this_rank_runs() -> None:
    found = program_versions()
    assert (found["torch"], found["numpy"]) == (torch.__version__, numpy.__version__)
    assert found["python"].startswith("3.") and len(found["megatron_core source"]) == 16
    assert COMMIT in found


def test_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    found = program_versions()
    assert (found["CUDA"], found["NCCL"]) == ("12.8", "2.27.5") and "NVIDIA driver" in found


def test_a_directory_outside_git_or_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_commit(tmp_path) == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(versions.PACKAGE) == "unknown"


def test_a_changed_or_renamed_file_changes_the_hash(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    first = source_hash(tmp_path)
    (tmp_path / "notes.txt").write_text("not a source")
    assert source_hash(tmp_path) == first
    (tmp_path / "a.py").write_text("x = 2\n")
    second = source_hash(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, source_hash(tmp_path)}) == 3


def test_driver(tmp_path: Path) -> None:
    path = tmp_path / "version"
    assert driver_version(path) == "unknown"
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Mon Feb 26 2024\n")
    assert driver_version(path) == "535.161.08"
    path.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n")
    assert driver_version(path) == "550.54.15"
