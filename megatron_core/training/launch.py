# SPDX-License-Identifier: Apache-2.0
"""Who started this process and how it joins the others; the only file that reads os.environ.

Three launchers are known: torchrun (RANK, WORLD_SIZE, ...), `srun` without torchrun (SLURM_PROCID, ...), and none,
which is a world of one. torchrun under srun counts as torchrun. The batch script of a Slurm job counts as none: it has
SLURM_PROCID=0 and the SLURM_NTASKS of the whole job, though nothing started the others; SLURM_STEP_* are set for what
`srun` started, and for nothing else.
"""

import contextlib
import datetime
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from megatron_core.config.parallel import ParallelConfig
from megatron_core.errors import ConfigError
from megatron_core.training.meeting import meet

# Below 32768, from where Linux takes ports for outgoing connections.
_SLURM_PORT_BASE, _SLURM_PORT_SPAN = 20000, 12000

_COMMUNICATION = re.compile(r"(NCCL|TORCH_NCCL|GLOO|UCX|OMP|MKL|KMP)_\w+|CUDA_(DEVICE_MAX_CONNECTIONS|VISIBLE_DEVICES)")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """This process's place in the job."""

    launcher: Literal["torchrun", "srun", "alone"]
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    threads_given: bool = False
    """Whether OMP_NUM_THREADS says how many threads a rank takes."""
    restarts: int = 0
    """How often this job ran before: requeued by Slurm, or restarted by torchrun."""


def detect(environ: Mapping[str, str] = os.environ) -> Launch:
    """Read the launcher's variables. Raises ConfigError where one is missing or no number."""
    threads_given = "OMP_NUM_THREADS" in environ
    restarts = _number(environ, "SLURM_RESTART_COUNT", "0") + _number(environ, "TORCHELASTIC_RESTART_COUNT", "0")
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return Launch(
            launcher="torchrun",
            rank=_number(environ, "RANK"),
            world_size=_number(environ, "WORLD_SIZE"),
            local_rank=_number(environ, "LOCAL_RANK", environ["RANK"]),
            local_world_size=_number(environ, "LOCAL_WORLD_SIZE", environ["WORLD_SIZE"]),
            address=environ.get("MASTER_ADDR", "127.0.0.1"),
            port=_number(environ, "MASTER_PORT", "29500"),
            threads_given=threads_given,
            restarts=restarts,
        )
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS", environ.get("SLURM_NTASKS", "1"))
    if "SLURM_STEP_NODELIST" in environ and tasks > 1:
        job = _number(environ, "SLURM_JOB_ID", "0")
        return Launch(
            launcher="srun",
            rank=_number(environ, "SLURM_PROCID"),
            world_size=tasks,
            local_rank=_number(environ, "SLURM_LOCALID", "0"),
            local_world_size=_tasks_on_node(environ),
            address=environ.get("MASTER_ADDR") or first_host(environ["SLURM_STEP_NODELIST"]),
            port=_number(environ, "MASTER_PORT", str(_SLURM_PORT_BASE + job % _SLURM_PORT_SPAN)),
            threads_given=threads_given,
            restarts=restarts,
        )
    return Launch(launcher="alone", threads_given=threads_given, restarts=restarts)


def _number(environ: Mapping[str, str], name: str, default: str | None = None) -> int:
    text = environ.get(name, default)
    if text is None or not text.strip().isdigit():
        raise ConfigError(f"the launcher's variable {name} is {text!r}, not a number: start with torchrun or srun.")
    return int(text)


def _tasks_on_node(environ: Mapping[str, str]) -> int:
    """This node's part of SLURM_STEP_TASKS_PER_NODE, such as `8(x280)` or `4(x2),3`."""
    node = _number(environ, "SLURM_NODEID", "0")
    for tasks, nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        node -= int(nodes or 1)
        if node < 0:
            return int(tasks)
    return 1


def first_host(nodelist: str) -> str:
    """First host of a Slurm node list: `n[07-09,12]` -> `n07`; `a1,b2` -> `a1`; `rack[2-3]n[0-7]` -> `rack2n0`."""
    match = re.match(r"(?:[^,\[]|\[\d[^\]]*\])+", nodelist)
    if match is None or nodelist.startswith("["):
        raise ConfigError(f"cannot read a host from SLURM_STEP_NODELIST={nodelist!r}: set MASTER_ADDR.")
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", match[0])


def communication_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that steer NCCL, gloo, CUDA and threads, in order of name: to be reported, not to decide by."""
    return {name: environ[name] for name in sorted(environ) if _COMMUNICATION.fullmatch(name)}


def choose_device(launch: Launch, config: ParallelConfig) -> torch.device:
    """This rank's device, made current. Raises ConfigError for a backend or GPU that this torch cannot serve."""
    # One hardware queue keeps kernels in launch order, so that a collective started before a GEMM runs beside it. It is
    # read when CUDA starts, which any question to it can do.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    if config.distributed_backend == "gloo" or not torch.cuda.is_available():
        if config.distributed_backend == "nccl":
            raise ConfigError("--distributed-backend nccl needs CUDA, which this torch does not see: use gloo.")
        if not launch.threads_given:
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // launch.local_world_size))
        return torch.device("cpu")
    if launch.local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"local rank {launch.local_rank} has no GPU: this node shows {torch.cuda.device_count()}; start at most "
            "that many ranks a node."
        )
    device = torch.device("cuda", launch.local_rank)
    major, minor = torch.cuda.get_device_capability(device)
    built_for = torch.cuda.get_arch_list()
    if not any(arch.startswith(f"sm_{major}") for arch in built_for):
        raise ConfigError(
            f"{torch.cuda.get_device_name(device)} is sm_{major}{minor}, but this torch was built for "
            f"{', '.join(built_for)}: install a build that has it (V100: the cu126 index)."
        )
    torch.cuda.set_device(device)
    return device


@contextlib.contextmanager
def process_group(launch: Launch, device: torch.device, timeout_minutes: float) -> Iterator[dist.Store]:
    """The default process group of the job while the context is open; none in a world of one.

    Gives a store over which threads of all ranks may talk: each takes its own connection by `clone`.
    """
    if launch.world_size == 1:
        yield dist.HashStore()
        return
    timeout = datetime.timedelta(minutes=timeout_minutes)
    method = "env://" if launch.launcher == "torchrun" else f"tcp://{launch.address}:{launch.port}"
    try:
        if launch.rank > 0:
            _await_host(launch, timeout.total_seconds())
        store, _, _ = next(dist.rendezvous(method, launch.rank, launch.world_size, timeout=timeout))
    except (dist.DistError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"rank {launch.rank} of {launch.world_size} did not meet the others at {launch.address}:{launch.port} "
            f"within {timeout_minutes:g} minutes ({reason}): check MASTER_ADDR and MASTER_PORT, and that no rank "
            "ended early."
        ) from error
    store.set_timeout(timeout)
    if launch.launcher == "torchrun":
        try:
            store = dist.PrefixStore(meet(store, launch.rank, launch.world_size, timeout.total_seconds()), store)
        except TimeoutError as error:
            raise ConfigError(f"rank {launch.rank} waited in vain: {error}; see the logs of the others.") from error
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.PrefixStore("groups", store),
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=timeout,
    )
    yield dist.PrefixStore("run", store)
    # Not on an error: NCCL would wait for peers that may be stuck in a collective this rank never joined.
    dist.destroy_process_group()


def _await_host(launch: Launch, timeout_s: float) -> None:
    """Return once somebody listens where the ranks meet. Raises OSError at the end of the time.

    torch's own client starts its time over several times where nobody does.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((launch.address, launch.port), timeout=timeout_s).close()
            return
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(min(0.1, timeout_s))
