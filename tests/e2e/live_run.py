# SPDX-License-Identifier: Apache-2.0
"""Starts a run as a launcher would, in well under a second, so that it can be killed and started again many times.

Each rank is a process of its own that was forked from one which has imported everything, has torchrun's variables and
goes through `pretrain`, as the command line does. What it says lies in a file.
"""

import functools
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from pathlib import Path

import torch

from megatron_core.training.console import LOGGER_NAME
from megatron_core.training.pretrain import pretrain
from tests.rank_pool import PRELOAD

TINY = (
    "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 --mock-data "
    "--vocab-size 32 --make-vocab-size-divisible-by 2 --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 "
    "--lr-decay-style constant --num-workers 0 --hidden-dropout 0.1 --attention-dropout 0.1 --eval-iters 0 "
    "--distributed-timeout-minutes 0.2"
)
"""Flags of a model that takes no time; dropout is on."""

_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "TORCHELASTIC_")
_PORTS = range(20000, 32000)  # below those that Linux takes for outgoing connections


class LiveRun:
    """One start of a run on this machine. Use as a context manager: no rank outlives it."""

    def __init__(self, flags: str, world_size: int, folder: Path) -> None:
        """`folder`: where what the ranks say goes; what an earlier start has said there is removed."""
        folder.mkdir(parents=True, exist_ok=True)
        self.started = time.time()
        """When it was started, in seconds since 1970, as files have it."""
        self._logs = [folder / f"rank{rank}.log" for rank in range(world_size)]
        for log in self._logs:
            log.unlink(missing_ok=True)  # not left to the ranks, which may be killed before
        variables = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        self._processes = [
            _context().Process(target=_run_rank, args=(flags, {**variables, "RANK": str(rank)}, log), daemon=True)
            for rank, log in enumerate(self._logs)
        ]
        for process in self._processes:
            process.start()

    def __enter__(self) -> "LiveRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    @property
    def codes(self) -> list[int | None]:
        """Exit codes so far: None while a rank lives, the signal's number negated where one killed it."""
        return [process.exitcode for process in self._processes]

    @property
    def lives(self) -> bool:
        """Whether all ranks are still there."""
        return all(code is None for code in self.codes)

    def kill(self, rank: int) -> bool:
        """End a rank as a machine that loses power does; False where it had ended by itself."""
        self._processes[rank].kill()
        self._processes[rank].join()
        return self._processes[rank].exitcode == -signal.SIGKILL

    def kill_all(self) -> None:
        """End what is left of the run."""
        for rank in range(len(self._processes)):
            self.kill(rank)

    def wait(self, seconds: float) -> list[int]:
        """Exit codes of all ranks, once the last has ended; TimeoutError, with all they said, where one does not."""
        deadline = time.monotonic() + seconds
        while waiting := [process.sentinel for process in self._processes if process.exitcode is None]:
            if not wait(waiting, max(deadline - time.monotonic(), 0)):
                said = "\n\n".join(self.said(rank)[-3000:] for rank in range(len(self._logs)))
                raise TimeoutError(f"ranks with codes {self.codes} have not ended within {seconds:g} s:\n{said}")
        return [process.exitcode or 0 for process in self._processes]

    def said(self, rank: int = 0) -> str:
        """All that a rank has written so far."""
        return self._logs[rank].read_text(errors="replace") if self._logs[rank].exists() else ""


@functools.cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    first = context.Process(target=int)  # it waits for what is imported, so that no rank has to
    first.start()
    first.join()
    return context


def _run_rank(flags: str, variables: Mapping[str, str], log: Path) -> None:
    """One rank, from its first instruction to its exit code."""
    os.setpgid(0, 0)
    with log.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    started = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name in list(os.environ):
        if name.startswith(_LAUNCHERS):
            del os.environ[name]
    os.environ.update({**variables, "OMP_NUM_THREADS": "1"})
    torch.set_num_threads(1)  # the variable was read when torch was imported
    logging.getLogger(LOGGER_NAME).handlers.clear()
    sys.exit(pretrain(flags.split(), started))


def _free_port() -> int:
    """A port that nobody listens at, and that no two starts of this machine are likely to draw at once."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
