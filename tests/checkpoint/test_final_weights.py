# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from megatron_core.checkpoint.final_weights import FILE_NAME, save_final_weights
from megatron_core.errors import CheckpointError
from tests.e2e.proof import FAMILIES, start_rank, whole_weights
from tests.rank_pool import run_ranks


def save(rank: int, world_size: int, flags: str, folder: str) -> str | None:
    run, _ = start_rank(rank, world_size, flags)
    parameters = [parameter for bucket in run.reducer.buckets for parameter in bucket.parameters]
    path = save_final_weights(parameters, run.ctx, folder, step=7)
    return None if path is None else str(path)


@pytest.mark.parametrize("precision", ["", "--bf16"])
def test_one_file_with_whole_tensors(precision: str, tmp_path: Path) -> None:
    flags, folder = f"{FAMILIES['gpt2']} {precision}", tmp_path / "not" / "there" / "yet"
    layout = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    assert run_ranks(save, 4, f"{flags} {layout}", str(folder)) == [str(folder / FILE_NAME), None, None, None]
    assert [path.name for path in folder.iterdir()] == [FILE_NAME], "nothing unfinished is left"
    found, expected = load_file(folder / FILE_NAME), whole_weights(start_rank(0, 1, flags)[0])
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) and found[name].dtype == expected[name].dtype for name in found)
    with safe_open(str(folder / FILE_NAME), "pt") as file:
        assert file.metadata() == {"step": "7"}


def test_an_older_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"old")
    save(0, 1, FAMILIES["gpt2"], str(tmp_path))
    assert load_file(tmp_path / FILE_NAME)["final_norm.weight"].shape == (32,)


def test_who_may_read_the_file_is_the_umasks_choice(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    save(0, 1, FAMILIES["gpt2"], str(tmp_path))
    assert (tmp_path / FILE_NAME).stat().st_mode == (tmp_path / "plain").stat().st_mode


def save_refused(rank: int, world_size: int, flags: str, folder: str) -> str:
    with pytest.raises(CheckpointError) as error:
        save(rank, world_size, flags, folder)
    return str(error.value)


def test_all_ranks_learn_that_rank_0_could_not_write(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()  # a folder in the place of the file
    first, second = run_ranks(save_refused, 2, FAMILIES["gpt2"], str(tmp_path))
    assert first.startswith("the final weights were not saved: ") and "see rank 0" in second
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME], "nothing unfinished is left"
