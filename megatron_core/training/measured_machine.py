# SPDX-License-Identifier: Apache-2.0
"""Measures the machine at hand as the planner's hardware: two processes at once, as ranks share its memory and caches.

Each of them times operators and products while the other does the same, then messages between the two, then tiny runs.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from megatron_core.config.optim import Precision
from megatron_core.errors import DataError
from megatron_core.parallel.collectives import all_gather_in_place, all_reduce, barrier, exchange_async
from megatron_core.parallel.context import Group
from megatron_core.planner.hardware import Device, Hardware, MeasuredOperator
from megatron_core.training.build import DTYPES
from megatron_core.training.measured_operators import measure_matmuls, measure_operators, timed
from megatron_core.training.measured_overheads import measure_overheads

MESSAGES = (4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20)
"""Bytes."""
_COPIED = 16_000_000
"""fp32 elements, more than caches hold."""
_TIMEOUT = 300.0


def measure_machine(name: str, precision: Precision, threads: int) -> Hardware:
    """This machine, ranks of so many threads. Raises DataError where its processes fail."""
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[Hardware] = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = [
            context.Process(target=_rank, args=(rank, store, name, precision, threads, results), daemon=True)
            for rank in range(2)
        ]
        for process in ranks:
            process.start()
        try:
            while results.empty():
                if failed := [process.exitcode for process in ranks if process.exitcode]:
                    raise DataError(f"measuring failed with exit code {failed[0]}; its reason is above")
                time.sleep(0.1)
            measured = results.get()
        finally:
            for process in ranks:
                process.join(5)
                process.kill()
    return measured


def _rank(
    rank: int, store: str, name: str, precision: Precision, threads: int, results: "multiprocessing.Queue[Hardware]"
) -> None:
    torch.set_num_threads(threads)
    both = dist.FileStore(store, 2)
    dist.init_process_group("gloo", store=both, rank=rank, world_size=2, timeout=timedelta(seconds=_TIMEOUT))
    group = Group("world", (0, 1), rank)
    hardware = _measured(group, name, precision, threads)
    barrier(group)
    if rank == 0:
        results.put(hardware)
    dist.destroy_process_group()


def _measured(group: Group, name: str, precision: Precision, threads: int) -> Hardware:
    dtype = DTYPES[precision]
    barrier(group)
    operators = list(measure_operators(dtype))
    barrier(group)
    matmuls = tuple(measure_matmuls(dtype))
    operators += measure_messages(group)
    ranks = max((os.cpu_count() or 1) // threads, 1)
    peak = max(one.tflops for one in matmuls)
    update = max((one for one in operators if one.name == "update"), key=lambda one: one.amount)
    link = max((one for one in operators if one.name == "send"), key=lambda one: one.amount)
    hardware = Hardware(
        name=name,
        device=Device(
            name=f"{name} ({threads} threads)" if threads > 1 else name,
            tflops={precision: peak},
            vector_tflops=peak,
            memory_gb=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9 / ranks,
            memory_gb_per_s=_copying(),
            link_gb_per_s=link.amount / link.seconds / 1e9,
            measured_matmuls=matmuls,
            measured_operators=tuple(operators),
        ),
        devices_per_node=ranks,
        network_gb_per_s=link.amount / link.seconds / 1e9,
        host_memory_gb=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9,
        host_adam_gparams_per_s=update.amount / update.seconds / 1e9 * ranks,
    )
    barrier(group)
    return hardware.with_operators(list(measure_overheads(hardware, precision)))


def measure_messages(group: Group) -> Iterator[MeasuredOperator]:
    """Collectives of two ranks and messages from one to the other, by bytes."""
    for nbytes in MESSAGES:
        tensor = torch.ones(nbytes // 4)
        actions: dict[str, Callable[[], object]] = {
            "all_reduce": partial(all_reduce, tensor, group),
            "all_gather": partial(_gather, tensor, group),
            "send": partial(_there_and_back, tensor, group),
        }
        for name, action in actions.items():
            seconds = _together(action, group) / (2 if name == "send" else 1)
            yield MeasuredOperator(name=name, amount=nbytes, seconds=seconds)


def _together(action: Callable[[], object], group: Group) -> float:
    """Mean seconds of what both ranks do after some computation, as in a step: a step has many, and sums them up.

    Threads that wait for a message are then asleep, caches are full of other things, and one rank comes before the
    other: it takes several times as long as one message right after the other.
    """
    x, weight = torch.ones(*_COMPUTED), torch.ones(*_COMPUTED).t()
    times: list[float] = []
    barrier(group)
    action()
    for _ in range(_REPETITIONS):
        _ = x @ weight
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return statistics.fmean(times)


_REPETITIONS = 40
_COMPUTED = 512, 1024
"""Dims of a product of some milliseconds."""


def _gather(tensor: torch.Tensor, group: Group) -> None:
    all_gather_in_place(tensor, group).wait()


def _there_and_back(tensor: torch.Tensor, group: Group) -> None:
    first = group.coordinate == 0
    for sends in (first, not first):
        for work in exchange_async([(sends, 1 - group.coordinate, tensor)], group):
            work.wait()


def _copying() -> float:
    """GB/s of reading and writing memory."""
    source, target = torch.zeros(_COPIED), torch.zeros(_COPIED)
    return 8 * _COPIED / timed(lambda: target.copy_(source)) / 1e9
