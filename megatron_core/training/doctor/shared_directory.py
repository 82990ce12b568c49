# SPDX-License-Identifier: Apache-2.0
"""Whether a directory is one and the same for all ranks: each reads what rank 0 wrote, and rank 0 what each node wrote.

A directory of the same name on every node's own disk is the usual mistake; it looks right from anywhere.
"""

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from megatron_core.training.doctor.exchange import Exchange

_PATIENCE_S = 5.0  # network file systems may remember for a while that a file was not there


def check_shared_directory(
    exchange: Exchange, directory: Path, writers: Sequence[int], patience_s: float = _PATIENCE_S
) -> list[str] | None:
    """What is wrong for each rank, empty where nothing is, in order of rank on rank 0; None elsewhere. All ranks call.

    `writers`: the ranks, one a node and rank 0 among them, that also write. Nothing is left in the directory.
    """
    token = exchange.broadcast("shared/token", secrets.token_hex(8))
    own = _file(directory, token, exchange.rank)
    try:
        written = _write(own, token) if exchange.rank == 0 else ""
        if rank0_problem := exchange.broadcast("shared/written", written):
            return [rank0_problem] + [""] * (exchange.world_size - 1) if exchange.rank == 0 else None
        problem = _read(_file(directory, token, 0), token, patience_s)
        if not problem and exchange.rank in writers and exchange.rank != 0:
            problem = _write(own, token)
        problems = exchange.gather("shared/read", problem)
        if problems is not None:
            for rank in writers:
                problems[rank] = problems[rank] or _read_back(_file(directory, token, rank), token, rank, patience_s)
        exchange.broadcast("shared/done", None)  # the files may go
    finally:
        own.unlink(missing_ok=True)
    return problems


def _file(directory: Path, token: str, rank: int) -> Path:
    return directory / f".doctor_{token}_{rank}"


def _write(path: Path, token: str) -> str:
    try:
        path.write_text(token)
    except OSError as error:
        return f"cannot write to {path.parent}: {error.strerror or error}"
    return ""


def _read(path: Path, token: str, patience_s: float) -> str:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            found = path.read_text()
            return "" if found == token else f"reads {found[:16]!r} in {path.parent} where rank 0 wrote {token!r}"
        except OSError as error:
            if time.monotonic() >= deadline:
                return f"does not see in {path.parent} what rank 0 wrote there: {error.strerror or error}"
        time.sleep(0.1)


def _read_back(path: Path, token: str, rank: int, patience_s: float) -> str:
    return f"writes to {path.parent} what rank 0 does not see" if _read(path, token, patience_s) else ""
