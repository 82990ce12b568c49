# SPDX-License-Identifier: Apache-2.0
"""Saving and loading 1.5 GB of state beside torch.distributed.checkpoint, and beside what the disk can do.

    python benchmarks/checkpoint.py [--ranks 1] [--rounds 5] [--gigabytes 1.5] [--folder DIR]

The state is that of a GPT in fp32: weights and Adam's moments, held alike by all ranks (dp replicas), of which each
implementation lets every rank write a share. Each round does everything once, in turn, so that a noisy machine disturbs
all alike; ratios are medians of rounds. Both bring their files to the disk before a save counts as done (torch's
writer does so by default); ours also computes checksums, and checks them as it loads. `stall` is how long an
asynchronous save keeps the caller; torch's stager is kept from save to save, as its documentation advises, and one save
of each goes unmeasured before the first round. `disk` writes and synchronises the same bytes, and reads them, in one
file a rank. Files are not in the page cache when they are read.
"""

import argparse
import logging
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from megatron_core.checkpoint.choose import Source, choose
from megatron_core.checkpoint.files import opened, read_exactly, write_file
from megatron_core.checkpoint.held import Held
from megatron_core.checkpoint.load import load_tensors
from megatron_core.checkpoint.manager import CheckpointManager
from megatron_core.checkpoint.rectangle import whole
from megatron_core.checkpoint.retention import Retention
from megatron_core.parallel.collectives import barrier
from megatron_core.parallel.context import ParallelContext, single_process_context
from megatron_core.parallel.groups import create_context
from megatron_core.parallel.rank_grid import RankGrid

HIDDEN = 1024
LAYER = {
    "attention.qkv.weight": (3 * HIDDEN, HIDDEN),
    "attention.out.weight": (HIDDEN, HIDDEN),
    "mlp.up.weight": (4 * HIDDEN, HIDDEN),
    "mlp.down.weight": (HIDDEN, 4 * HIDDEN),
    "norm.weight": (HIDDEN,),
}
LAYER_BYTES = 3 * 4 * (12 * HIDDEN * HIDDEN + HIDDEN)
READ_BYTES = 16 * 2**20


class Contest:
    """One rank's tensors and folder, and what both implementations do with them."""

    def __init__(self, ctx: ParallelContext, store: dist.Store, folder: Path, gigabytes: float) -> None:
        torch.manual_seed(1)
        self.ctx, self.folder = ctx, folder
        self.tensors = {
            f"{section}/layers.{layer}.{name}": torch.randn(shape)
            for section in ("model", "adam_m", "adam_v")
            for layer in range(max(round(gigabytes * 1e9 / LAYER_BYTES), 1))
            for name, shape in LAYER.items()
        }
        self.nbytes = sum(tensor.nbytes for tensor in self.tensors.values())
        self.held = [
            Held(name=name, shape=tuple(t.shape), rectangle=whole(t.shape), values=t, counted=True, replicated=True)
            for name, t in self.tensors.items()
        ]
        self.manager = CheckpointManager(folder / "ours", ctx, store, retention=Retention())
        self.stager = DefaultStager(StagingOptions(False, False, False, False))  # all but the cache needs CUDA
        self.raw = torch.randint(256, (self.nbytes // ctx.world.size,), dtype=torch.uint8)

    def our_save(self, *, wait: bool) -> None:
        self.manager.save(1, self.held, state={}, config={}, wait=wait)

    def our_load(self) -> None:
        chosen = choose(Source(root=self.folder / "ours"), self.ctx)
        assert chosen is not None, "it was saved just before"
        load_tensors(chosen, self.held, self.ctx, with_optim=True)

    def torch_save(self) -> None:
        dcp.save(dict(self.tensors), storage_writer=dcp.FileSystemWriter(self.folder / "torch"))

    def torch_load(self) -> None:
        dcp.load(dict(self.tensors), storage_reader=dcp.FileSystemReader(self.folder / "torch"))

    def async_stalls(self) -> tuple[float, float]:
        """Seconds that the caller waits for ours and for torch's, each on its own."""
        ours = self.seconds(lambda: self.our_save(wait=False))
        self.manager.close()
        assert self.manager.take_failure() is None, "the save failed"
        self.clear()
        begin = time.perf_counter()
        writer = dcp.FileSystemWriter(self.folder / "torch")
        future = dcp.async_save(dict(self.tensors), storage_writer=writer, async_stager=self.stager)
        stall = time.perf_counter() - begin
        getattr(future, "upload_completion", future).result()
        self.clear()
        return ours, stall

    def raw_write(self) -> None:
        view = self.raw.numpy().data
        chunks = [view[at : at + READ_BYTES] for at in range(0, len(view), READ_BYTES)]
        write_file(self.folder / f"raw{self.ctx.rank}", chunks)

    def raw_read(self) -> None:
        path, view = self.folder / f"raw{self.ctx.rank}", self.raw.numpy().data
        with opened(path) as descriptor:
            for at in range(0, len(view), READ_BYTES):
                read_exactly(descriptor, path, at, view[at : at + READ_BYTES])

    def seconds(self, work: Callable[[], None]) -> float:
        """Of the slowest rank."""
        barrier(self.ctx.world)
        begin = time.perf_counter()
        work()
        barrier(self.ctx.world)
        return time.perf_counter() - begin

    def clear(self) -> None:
        """Remove all files."""
        barrier(self.ctx.world)
        if self.ctx.rank == 0:
            for path in self.folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        barrier(self.ctx.world)

    def forget(self) -> None:
        """Take all files out of the page cache."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                with opened(path) as descriptor:
                    os.fsync(descriptor)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def round(self) -> dict[str, float]:
        """Seconds of everything."""
        found = {}
        pairs = [
            ("ours", lambda: self.our_save(wait=True), self.our_load),
            ("torch", self.torch_save, self.torch_load),
            ("disk", self.raw_write, self.raw_read),
        ]
        for name, save, load in pairs:
            found[f"{name} save"] = self.seconds(save)
            self.forget()
            found[f"{name} load"] = self.seconds(load)
            self.clear()
        found["ours stall"], found["torch stall"] = self.async_stalls()
        return found


def worker(rank: int, ranks: int, rounds: int, gigabytes: float, folder: Path) -> None:
    """One rank."""
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    torch.set_num_threads(max(len(os.sched_getaffinity(0)) // ranks, 1))
    ctx, store = single_process_context(), dist.HashStore()
    if ranks > 1:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}.store", ranks), rank=rank, world_size=ranks)
        ctx = create_context(RankGrid(dp=ranks), rank, torch.device("cpu"))
        store = dist.FileStore(f"{folder}.threads", ranks)
    contest = Contest(ctx, store, folder, gigabytes)
    load = os.getloadavg()[0]
    contest.round()
    found = [contest.round() for _ in range(rounds)]
    if rank == 0:
        report(found, contest.nbytes, ranks, load)
    if ranks > 1:
        dist.destroy_process_group()


def report(found: list[dict[str, float]], nbytes: int, ranks: int, load: float) -> None:
    """Medians of seconds and GB/s, then the ratios that have goals."""
    print(f"{nbytes / 1e9:.2f} GB, {ranks} ranks, {len(found)} rounds, {os.cpu_count()} cores, load {load:.1f} before")
    for name in ("ours save", "torch save", "disk save", "ours load", "torch load", "disk load"):
        seconds = [one[name] for one in found]
        middle = statistics.median(seconds)
        print(
            f"  {name:<11}{middle:6.2f} s ({min(seconds):.2f} to {max(seconds):.2f}) {nbytes / middle / 1e9:6.2f} GB/s"
        )
    for name in ("ours stall", "torch stall"):
        seconds = [one[name] for one in found]
        print(f"  {name:<11}{statistics.median(seconds):6.3f} s ({min(seconds):.3f} to {max(seconds):.3f})")
    for text, upper, lower, goal in (
        ("async stall / own sync save", "ours stall", "ours save", "at most 0.20"),
        ("async stall / torch's sync save", "ours stall", "torch save", ""),
        ("async stall / torch's async stall", "ours stall", "torch stall", "at most 1"),
        ("save throughput / torch's", "torch save", "ours save", "at least 0.9"),
        ("load throughput / torch's", "torch load", "ours load", "at least 0.9"),
        ("save throughput / disk's", "disk save", "ours save", ""),
        ("load throughput / disk's", "disk load", "ours load", ""),
    ):
        ratio = statistics.median(one[upper] / one[lower] for one in found)
        print(f"  {text:<34}{ratio:6.2f}" + (f"  (goal: {goal})" if goal else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=1.5)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; by default the temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        (Path(folder) / "files").mkdir()
        common = (arguments.ranks, arguments.rounds, arguments.gigabytes, Path(folder) / "files")
        if arguments.ranks == 1:
            worker(0, *common)
        else:
            torch.multiprocessing.spawn(worker, common, nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
