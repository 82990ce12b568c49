# SPDX-License-Identifier: Apache-2.0
"""Saving by all ranks: each byte once, the values of that moment, failures heard by all, nothing older lost."""

import errno
import math
import os
import re
import shutil
import subprocess
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megatron_core.checkpoint import files, manager
from megatron_core.checkpoint.directory import read_manifest, step_directory, steps_present
from megatron_core.checkpoint.held import Held, held_tensors
from megatron_core.checkpoint.manager import CheckpointManager
from megatron_core.checkpoint.manifest import RankFile
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import whole
from megatron_core.checkpoint.retention import Retention
from megatron_core.checkpoint.writer import Shard
from megatron_core.errors import CheckpointError
from megatron_core.parallel.context import ParallelContext, single_process_context
from megatron_core.training.build import Run
from tests.checkpoint.small_checkpoint import CONFIG, STATE
from tests.e2e.proof import FAMILIES, start_rank
from tests.rank_pool import ranks, run_ranks


def held_of(run: Run) -> list[Held]:
    return held_tensors(run.reducer.buckets, run.optimizer, with_optim=True)


def make_manager(root: Path, ctx: ParallelContext | None = None, **arguments: Any) -> CheckpointManager:
    """A manager of a world of one, or of the ranks of `ctx`, which meet in a file beside `root`."""
    alone = ctx is None or ctx.world.size == 1
    store = dist.HashStore() if alone else dist.FileStore(f"{root}.store", ctx.world.size)
    arguments.setdefault("retention", Retention())
    return CheckpointManager(root, ctx or single_process_context(), store, **arguments)


def save(saver: CheckpointManager, step: int, held: Sequence[Held], *, wait: bool = True) -> None:
    saver.save(step, held, state=STATE | {"step": step}, config=CONFIG, wait=wait)


def load(root: Path, step: int) -> dict[str, torch.Tensor]:
    """Every tensor whole, each block checked."""
    manifest = read_manifest(root, step)
    with CheckpointReader(step_directory(root, step), manifest) as reader:
        return {
            entry.name: reader.load_rectangle(entry.name, whole(entry.shape), getattr(torch, entry.dtype))
            for entry in manifest.tensors
        }


def some_held(value: float = 1.0, rows: int = 40) -> list[Held]:
    """Two tensors, as every rank holds them."""
    return [
        Held(
            name=f"model/{name}",
            shape=(rows, 3),
            rectangle=whole((rows, 3)),
            values=values,
            counted=True,
            replicated=True,
        )
        for name, values in {"a": torch.full((rows, 3), value), "b": torch.full((rows, 3), -value)}.items()
    ]


# Every byte once


def pattern(name: str, shape: Sequence[int]) -> torch.Tensor:
    """What a whole tensor holds: other values for every element and every name, exact in 16 bits."""
    return torch.arange(math.prod(shape)).add(zlib.crc32(name.encode())).remainder(251).view(tuple(shape))


def save_pattern(rank: int, world_size: int, flags: str, root: str, wait: bool) -> None:
    run, _ = start_rank(rank, world_size, flags)
    held = held_of(run)
    for tensor in held:
        tensor.values.copy_(pattern(tensor.name, tensor.shape)[tensor.rectangle.slices((0,) * len(tensor.shape))])
    saver = make_manager(Path(root), run.ctx)
    save(saver, 1, held, wait=wait)
    for tensor in held:  # training goes on
        tensor.values.fill_(-1.0)
    saver.close()
    assert saver.take_failure() is None
    assert saver.last_published == (1 if rank == 0 else None)


LAYOUTS = {
    "tp2-pp2": (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", False),
    "dp2": (2, "", False),
    "tp2-dp2-pp2-padded": (
        8,
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --make-vocab-size-divisible-by 64",
        True,
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_byte_is_written_once(layout: str, tmp_path: Path) -> None:
    """What is there is the whole model under the names of one process; the files are no larger, and even over dp."""
    world_size, flags, wait = LAYOUTS[layout]
    model = f"{FAMILIES['llama']} --bf16"
    run_ranks(save_pattern, world_size, f"{model} {flags}", str(tmp_path / "run"), wait)
    alone = {tensor.name: tensor for tensor in held_of(start_rank(0, 1, model)[0])}
    found = load(tmp_path / "run", 1)
    assert found.keys() == alone.keys()
    for name, tensor in found.items():
        assert tensor.dtype == alone[name].values.dtype
        assert torch.equal(tensor, pattern(name, alone[name].shape).to(tensor.dtype)), name
    manifest = read_manifest(tmp_path / "run", 1)
    data = [file.size - file.header_bytes for file in manifest.files]
    assert len(data) == world_size
    assert sum(data) == sum(tensor.nbytes for tensor in manifest.tensors)
    if layout == "dp2":
        assert max(data) - min(data) < 0.01 * sum(data)
    assert manifest.state == STATE | {"step": 1} and manifest.config == {
        "model": {"num_layers": 2, "normalization": "LayerNorm"},
        "data": {"split": [99, 1, 0], "seed": None},
    }


# At the moment of the save


@contextmanager
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writing waits until the event is set."""
    go = threading.Event()
    original = manager.write_rank_file

    def write(directory: Path, name: str, shards: Sequence[Shard]) -> RankFile:
        assert go.wait(20), "nobody let the writer go"
        return original(directory, name, shards)

    monkeypatch.setattr(manager, "write_rank_file", write)
    yield go
    go.set()


def test_the_values_are_those_of_the_moment_of_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, held = make_manager(tmp_path), some_held(1.0)
    with held_back(monkeypatch) as go:
        save(saver, 10, held, wait=False)
        for tensor in held:
            tensor.values.fill_(99.0)
        assert saver.last_published is None and not (step_directory(tmp_path, 10) / "manifest.json").exists()
        go.set()
        saver.close()
    assert saver.last_published == 10
    assert load(tmp_path, 10)["model/a"].eq(1.0).all() and load(tmp_path, 10)["model/b"].eq(-1.0).all()


def test_of_a_save_that_is_waited_for_only_what_the_device_has_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offloaded states are the larger part, and the host may have no room for them twice."""
    saver, taken = make_manager(tmp_path), []

    def take(shards: Sequence[Shard]) -> list[Shard]:
        taken.append([shard.name for shard in shards])
        return [replace(shard, values=torch.zeros(shard.values.shape)) for shard in shards]

    monkeypatch.setattr(saver._host_copy, "take", take)
    device, host = torch.empty(2, device="meta"), torch.ones(2)
    shards = [
        Shard(name=name, shape=(2,), rectangle=whole((2,)), values=values)
        for name, values in (("weight", device), ("master", host))
    ]
    (weight, master), _ = saver._copied(shards, wait=True)
    assert weight.values.device.type == "cpu" and master.values is host
    saver._copied(shards, wait=False)
    assert taken == [["weight"], ["weight", "master"]]


def test_at_most_one_save_is_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second save waits for the first, whose copy is not overwritten."""
    saver = make_manager(tmp_path)
    with held_back(monkeypatch) as go:
        save(saver, 10, some_held(1.0), wait=False)
        later = threading.Timer(0.05, go.set)
        later.start()
        save(saver, 20, some_held(2.0), wait=False)
        assert go.is_set() and saver.last_published in (10, 20)
        saver.close()
        later.join()
    assert load(tmp_path, 10)["model/a"].eq(1.0).all() and load(tmp_path, 20)["model/a"].eq(2.0).all()


def test_memory_is_reserved_behind_training(tmp_path: Path) -> None:
    saver, held = make_manager(tmp_path), some_held()
    saver.reserve(held)
    save(saver, 10, held, wait=False)
    saver.close()
    assert load(tmp_path, 10).keys() == {"model/a", "model/b"}


def test_a_step_that_is_there_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = make_manager(tmp_path)
    save(saver, 10, some_held(1.0))
    with held_back(monkeypatch) as go:
        save(saver, 10, some_held(2.0), wait=False)
        assert load(tmp_path, 10)["model/a"].eq(1.0).all(), "the old one is whole until the new one is"
        go.set()
        saver.close()
    assert load(tmp_path, 10)["model/a"].eq(2.0).all()
    assert len(list(step_directory(tmp_path, 10).iterdir())) == 2


# Failures


def full_disk(descriptor: int, data: memoryview) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def check_one_full_disk(ctx: ParallelContext, root: str, wait: bool) -> None:
    saver = make_manager(Path(root), ctx)
    save(saver, 10, some_held(1.0))
    reason = (
        r"the checkpoint of step 20 was not saved: \[rank 1\] cannot write .*step_00000020/rank_00001.safetensors: "
        "No space left on device"
    )
    with pytest.MonkeyPatch.context() as patch:
        if ctx.rank == 1:
            patch.setattr(files.os, "write", full_disk)
        if wait:
            with pytest.raises(CheckpointError, match=reason):
                save(saver, 20, some_held(2.0))
        else:
            save(saver, 20, some_held(2.0), wait=False)
            saver.close()
            failure = saver.take_failure()
            assert failure is None if ctx.rank else re.fullmatch(reason, failure or "")
        assert saver.take_failure() is None, "told once"
    if ctx.rank == 0:
        assert steps_present(Path(root)) == [10], "nothing of it is left"
    save(saver, 30, some_held(3.0))
    assert load(Path(root), 10)["model/a"].eq(1.0).all() and load(Path(root), 30)["model/a"].eq(3.0).all()


@ranks(2)
def test_a_disk_full_on_one_rank_fails_the_save_on_all(ctx: ParallelContext, tmp_path: Path) -> None:
    check_one_full_disk(ctx, str(tmp_path / "run"), wait=True)


@ranks(2)
def test_a_disk_full_behind_training_is_told_by_rank_0(ctx: ParallelContext, tmp_path: Path) -> None:
    check_one_full_disk(ctx, str(tmp_path / "run"), wait=False)


@ranks(2)
def test_a_directory_that_cannot_be_made_is_an_error_on_all(ctx: ParallelContext, tmp_path: Path) -> None:
    if ctx.rank == 0:
        (tmp_path / "file").write_text("not a directory")
    saver = make_manager(tmp_path / "file", ctx)
    with pytest.raises(CheckpointError, match=r"checkpoint of step 10 was not saved: cannot make .*file/step_00000010"):
        save(saver, 10, some_held())
    save(saver, 10, some_held(), wait=False)
    told = saver.take_failure()
    assert told is None if ctx.rank else told is not None and "cannot make" in told


def test_a_directory_that_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = make_manager(tmp_path / "run")
    with held_back(monkeypatch) as go:
        save(saver, 10, some_held(), wait=False)
        shutil.rmtree(tmp_path / "run")
        go.set()
        saver.close()
    told = saver.take_failure()
    assert told is not None and "rank_00000.safetensors: No such file or directory" in told and "still" not in told
    save(saver, 20, some_held())
    assert steps_present(tmp_path / "run") == [20]


def test_a_bug_in_the_thread_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(directory: Path, name: str, shards: Sequence[Shard]) -> RankFile:
        raise ZeroDivisionError("division by zero")

    saver = make_manager(tmp_path)
    monkeypatch.setattr(manager, "write_rank_file", broken)
    save(saver, 10, some_held(), wait=False)
    saver.close()
    told = saver.take_failure()
    assert told == "the checkpoint of step 10 was not saved: ZeroDivisionError: division by zero"


def test_too_little_memory_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(shards: Sequence[Shard]) -> list[Shard]:
        raise RuntimeError("can't allocate memory")

    saver = make_manager(tmp_path)
    monkeypatch.setattr(saver._host_copy, "take", refuse)
    save(saver, 10, some_held(), wait=False)
    saver.close()
    told = saver.take_failure()
    assert told is not None and "no copy of 960 bytes in host memory" in told and "set --no-async-save" in told
    save(saver, 20, some_held())  # needs no copy


@ranks(2)
def test_a_rank_that_is_gone_is_not_waited_for_after_an_error(ctx: ParallelContext, tmp_path: Path) -> None:
    """The thread of rank 0 ends and publishes nothing."""
    saver = make_manager(tmp_path / "run", ctx)
    if ctx.rank == 1:
        saver._run = lambda save: None  # type: ignore[method-assign]
    save(saver, 10, some_held(), wait=False)
    saver.abandon()
    saver.close()
    assert saver.last_published is None
    if ctx.rank == 0:
        assert steps_present(tmp_path / "run") == []
        assert "the run ended" in (saver.take_failure() or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a tmpfs")
def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """CKP-03: 4 MiB hold the first checkpoint and not the second; keeping one, the first still loads."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        saver = make_manager(disk, retention=Retention(keep_last=1))
        save(saver, 10, some_held(1.0, rows=100_000))
        for wait in (True, False):
            try:
                save(saver, 20, some_held(2.0, rows=100_000), wait=wait)
                saver.close()
                told = saver.take_failure()
            except CheckpointError as error:
                told = str(error)
            assert told is not None and "No space left on device" in told
            assert steps_present(disk) == [10] and load(disk, 10)["model/a"].eq(1.0).all()
        save(saver, 30, some_held(3.0, rows=10_000))
        assert steps_present(disk) == [30]
    finally:
        subprocess.run(["umount", disk], check=True)


# Old checkpoints


def test_old_ones_go_after_the_new_one_is_published(tmp_path: Path) -> None:
    saver = make_manager(tmp_path, retention=Retention(keep_last=2))
    for step in (90, 100, 110):
        save(saver, step, some_held(float(step)), wait=False)
    saver.close()
    assert saver.take_failure() is None
    assert steps_present(tmp_path) == [100, 110]


def test_a_bit_flipped_on_the_way_to_the_disk_costs_no_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read back before the checkpoint before it goes."""
    original = manager.write_rank_file

    def flipping(directory: Path, name: str, shards: Sequence[Shard]) -> RankFile:
        written = original(directory, name, shards)
        data = bytearray((directory / name).read_bytes())
        data[-1] ^= 1
        (directory / name).write_bytes(data)
        return written

    saver = make_manager(tmp_path, retention=Retention(keep_last=1))
    save(saver, 10, some_held(1.0))
    with monkeypatch.context() as patch:
        patch.setattr(manager, "write_rank_file", flipping)
        with pytest.raises(CheckpointError, match=r"step 20 was not saved: .*damaged"):
            save(saver, 20, some_held(2.0))
    assert steps_present(tmp_path) == [10] and load(tmp_path, 10)["model/a"].eq(1.0).all()


def test_old_ones_that_cannot_be_removed_do_not_fail_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saver = make_manager(tmp_path, retention=Retention(keep_last=1))
    save(saver, 10, some_held())

    def refuse(published: int) -> None:
        raise CheckpointError("cannot remove step 10")

    monkeypatch.setattr(saver._old, "let_go", refuse)
    save(saver, 20, some_held())
    assert saver.last_published == 20 and saver.take_failure() is None
    assert "checkpoint of step 20 is saved, but older ones were not removed: cannot remove step 10" in caplog.text
