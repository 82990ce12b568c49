# SPDX-License-Identifier: Apache-2.0
"""One live rank of the pool: waits for a call, runs it inside a fresh gloo world, sends back its result or traceback.

Between calls nothing survives: environment, default dtype, random state and process groups are put back.
"""

import datetime
import faulthandler
import importlib.util
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from megatron_core.parallel.groups import create_context
from megatron_core.parallel.rank_grid import RankGrid

STACK_SIGNAL = signal.SIGUSR1


@dataclass(frozen=True, kw_only=True)
class Call:
    """What one rank is asked to run."""

    module: str
    file: str
    function: str
    rank: int
    world_size: int
    store: str
    """A file that does not exist yet, where the ranks of this call meet."""
    timeout: float
    """Seconds until the pool gives up; the process group waits longer, so that the pool's report comes first."""
    layout: dict[str, int] | None
    """Axis sizes (and kv_replicas) when the function takes a ParallelContext; None: it takes (rank, world_size)."""
    arguments: bytes
    """Pickled (args, kwargs); read after the module was imported, which may define their classes."""


@dataclass(frozen=True)
class Reply:
    """What came of it."""

    result: bytes | None
    error: str | None


def serve(calls: Connection, folder: str, index: int) -> None:
    """Run calls until the pool hangs up. stdout, stderr and stacks on STACK_SIGNAL go to files in `folder`."""
    log = (Path(folder) / f"{index}.log").open("ab", buffering=0)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    stacks = (Path(folder) / f"{index}.stacks").open("w")
    faulthandler.enable(stacks)
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
    torch.set_num_threads(1)
    environment = dict(os.environ)
    while True:
        try:
            call: Call = pickle.loads(calls.recv_bytes())
            calls.send_bytes(pickle.dumps(_reply(call)))
            calls.recv_bytes()  # all ranks are done: closing connections cannot disturb anybody any more
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return
        _clean_up(environment)


def _reply(call: Call) -> Reply:
    torch.manual_seed(0)
    try:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(call.store, call.world_size),
            rank=call.rank,
            world_size=call.world_size,
            timeout=datetime.timedelta(seconds=call.timeout + 60),
        )
        return Reply(pickle.dumps(_result(call)), None)
    except BaseException:  # whatever ends a test body belongs in its report: pytest.fail and SystemExit too
        return Reply(None, traceback.format_exc())


def _result(call: Call) -> Any:
    function = _function(call)
    args, kwargs = pickle.loads(call.arguments)
    if call.layout is None:
        return function(call.rank, call.world_size, *args, **kwargs)
    sizes = dict(call.layout)
    kv_replicas = sizes.pop("kv_replicas", 1)
    context = create_context(RankGrid(**sizes), call.rank, torch.device("cpu"), kv_replicas=kv_replicas)
    return function(context, *args, **kwargs)


def _function(call: Call) -> Callable[..., Any]:
    found: Any = _module(call.module, call.file)
    for part in call.function.split("."):
        found = getattr(found, part)
    return getattr(found, "rank_body", found)


def _module(name: str, file: str) -> ModuleType:
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == file:
        return loaded
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, f"{file} cannot be imported"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _clean_up(environment: dict[str, str]) -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    if dict(os.environ) != environment:
        os.environ.clear()
        os.environ.update(environment)
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
