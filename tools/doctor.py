#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Examine the machines of a job before it runs: who is where, how fast they talk, what differs between them.

    torchrun --nproc-per-node 8 tools/doctor.py --tensor-model-parallel-size 8 --shared-dir /checkpoints
    srun --nodes 4 --ntasks-per-node 8 python tools/doctor.py --tensor-model-parallel-size 8 --shared-dir /checkpoints

Start it as the training itself will be started. Exit code: 0 all good, 1 problems found, 2 bad flags or launch.
"""

import argparse
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_core.config.parallel import ParallelConfig
from megatron_core.errors import ConfigError, UserError
from megatron_core.parallel.groups import create_context
from megatron_core.parallel.rank_grid import DEFAULT_ORDER, TP_PP_DP_ORDER, RankGrid
from megatron_core.training.doctor import findings
from megatron_core.training.doctor.clock import ClockOffset, clock_offsets
from megatron_core.training.doctor.exchange import Exchange
from megatron_core.training.doctor.facts import RankFacts, collect_facts, one_rank_a_host
from megatron_core.training.doctor.links import LinkTime, measure_links
from megatron_core.training.doctor.number_ranges import format_number_ranges
from megatron_core.training.doctor.shared_directory import check_shared_directory
from megatron_core.training.launch import Launch, choose_device, communication_settings, detect, process_group
from tools.text_table import text_table

PROBLEMS, BAD_INPUT = 1, 2
SMALL_BYTES, MEDIUM_BYTES = 4, 2**20


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Flags; those of the layout are training's."""
    parser = argparse.ArgumentParser(
        prog="tools/doctor.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--tensor-model-parallel-size", type=int, default=1, help="as in training")
    add("--pipeline-model-parallel-size", type=int, default=1, help="as in training")
    add("--use-tp-pp-dp-mapping", action="store_true", help="as in training")
    backends = get_args(ParallelConfig.__annotations__["distributed_backend"])
    add("--distributed-backend", choices=backends, default="auto", help="as in training")
    add("--distributed-timeout-minutes", type=float, default=2.0, help="how long to wait for a rank")
    add("--shared-dir", type=Path, help="directory that all nodes are to see, such as that of --save")
    add("--largest-mb", type=float, help="largest message, in MB; default: 256 on GPUs, 16 on CPUs")
    arguments = parser.parse_args(list(words))
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "distributed_timeout_minutes"):
        if not getattr(arguments, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, not {getattr(arguments, name)}")
    if arguments.largest_mb is not None and not arguments.largest_mb > 0:
        parser.error(f"--largest-mb must be above 0, not {arguments.largest_mb}")
    return arguments


def main(words: Sequence[str]) -> int:
    """Exit code of this rank; all ranks give the same one."""
    arguments = parse_arguments(words)
    try:
        launch = detect()
        grid = grid_of(arguments, launch.world_size)
        device = choose_device(launch, ParallelConfig(distributed_backend=arguments.distributed_backend))
        with process_group(launch, device, arguments.distributed_timeout_minutes) as store:
            return examine(arguments, launch, grid, device, store)
    except (UserError, RuntimeError) as error:
        # What does not work here is what the doctor is asked for: one line a rank, with its node, and no traceback.
        print(f"error on {socket.gethostname()}: {(str(error) or repr(error)).splitlines()[0]}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, ConfigError) else PROBLEMS


def grid_of(arguments: argparse.Namespace, world_size: int) -> RankGrid:
    """The mesh that the flags ask for. Raises ConfigError where it does not fit the ranks."""
    tp, pp = arguments.tensor_model_parallel_size, arguments.pipeline_model_parallel_size
    if world_size % (tp * pp):
        raise ConfigError(
            f"{world_size} ranks are no multiple of tp {tp} x pp {pp}: start another number of ranks, or set "
            "--tensor-model-parallel-size and --pipeline-model-parallel-size"
        )
    order = TP_PP_DP_ORDER if arguments.use_tp_pp_dp_mapping else DEFAULT_ORDER
    return RankGrid(tp=tp, pp=pp, dp=world_size // (tp * pp), order=order)


def examine(
    arguments: argparse.Namespace, launch: Launch, grid: RankGrid, device: torch.device, store: dist.Store
) -> int:
    """One topic after the other, told by rank 0 as soon as it is known; the exit code."""
    exchange = Exchange(store, launch.rank, launch.world_size, arguments.distributed_timeout_minutes)
    told = exchange.gather("facts", collect_facts(launch, device, communication_settings()).to_json())
    facts = [RankFacts.from_json(value) for value in told or []]
    problems: list[str] = []
    if facts:
        show("ranks", rank_table(facts))
        show("versions", versions_table(facts))
        show("settings", settings_table(facts))
        show("limits", limits_table(facts))
        problems += findings.placement_findings(facts, grid.groups("tp"))
        problems += findings.version_findings(facts)
        problems += findings.setting_findings(facts)
        problems += findings.limit_findings(facts)
    speakers = exchange.broadcast("speakers", one_rank_a_host(facts))
    offsets = clock_offsets(exchange, speakers)
    if offsets is not None:
        show("clocks", clock_table(offsets, facts))
        problems += findings.clock_findings(offsets, facts)
    if arguments.shared_dir is not None:
        seen = check_shared_directory(exchange, arguments.shared_dir, speakers)
        if seen is not None:
            line = f"{arguments.shared_dir}: {seen.count('')} of {len(seen)} ranks have nothing to say against it"
            show("shared directory", [line])
            problems += findings.shared_findings(seen, facts)
    problems += examine_links(arguments, grid, device, exchange, facts)
    code: int = exchange.broadcast("verdict", tell_verdict(problems) if launch.rank == 0 else None)
    exchange.gather("leaving", None)  # rank 0 may hold the store, and leaves last
    return code


def examine_links(
    arguments: argparse.Namespace, grid: RankGrid, device: torch.device, exchange: Exchange, facts: Sequence[RankFacts]
) -> list[str]:
    """Measure and show the links; what is wrong with them, on rank 0."""
    largest_mb = arguments.largest_mb or (256 if device.type == "cuda" else 16)
    sizes = sorted({SMALL_BYTES, MEDIUM_BYTES, max(int(largest_mb * 1e6) // 4 * 4, SMALL_BYTES)})
    ctx = create_context(grid, exchange.rank, device, timeout_minutes=arguments.distributed_timeout_minutes)
    links = measure_links(ctx, exchange, sizes, say if exchange.rank == 0 else lambda text: None)
    if links is None:
        return []
    show("links", link_table(links) if links else ["one rank talks to nobody"])
    return list(findings.link_findings(links, facts))


def say(text: str) -> None:
    """Progress, apart from what is found."""
    print(text, file=sys.stderr, flush=True)


def show(title: str, lines: Sequence[str]) -> None:
    """One topic."""
    print("\n".join([f"== {title}", *lines, ""]), flush=True)


def tell_verdict(problems: Sequence[str]) -> int:
    """Say what is wrong, numbered; the exit code."""
    print("== verdict")
    for number, problem in enumerate(problems, 1):
        print(f"{number}. {problem}")
    if not problems:
        print("all good")
    sys.stdout.flush()
    return PROBLEMS if problems else 0


def rank_table(facts: Sequence[RankFacts]) -> list[str]:
    """Ranks to hosts, devices and NUMA nodes."""
    header = ("rank", "host", "local", "device", "PCI", "its NUMA node", "CPUs", "their NUMA nodes", "threads")
    rows = [
        (
            str(fact.rank),
            fact.host,
            str(fact.local_rank),
            fact.device,
            fact.pci_address or "-",
            "-" if fact.device_node is None else str(fact.device_node),
            format_number_ranges(fact.cpus),
            format_number_ranges(fact.cpu_nodes) or "-",
            str(fact.threads),
        )
        for fact in facts
    ]
    return text_table(header, rows, right=("rank", "local", "threads"))


def versions_table(facts: Sequence[RankFacts]) -> list[str]:
    """Versions, a line for each that some ranks have."""
    return _value_table("program", [fact.versions for fact in facts])


def settings_table(facts: Sequence[RankFacts]) -> list[str]:
    """Environment variables, a line for each value that some ranks have."""
    return _value_table("variable", [fact.settings for fact in facts])


def _value_table(what: str, values: Sequence[Mapping[str, str]]) -> list[str]:
    rows = [
        (name, value, format_number_ranges(ranks))
        for name in sorted({name for one in values for name in one})
        for value, ranks in findings.ranks_by((one.get(name, "-"), rank) for rank, one in enumerate(values)).items()
    ]
    return text_table((what, "value", "ranks"), rows)


def limits_table(facts: Sequence[RankFacts]) -> list[str]:
    """Limits, a line for each set of ranks that have the same."""
    rows = [
        (*limits.split(), format_number_ranges(ranks))
        for limits, ranks in findings.ranks_by(
            (f"{_limit(fact.open_files)} {_limit(fact.locked_memory)} {'yes' if fact.infiniband else 'no'}", fact.rank)
            for fact in facts
        ).items()
    ]
    return text_table(("open files", "locked bytes", "InfiniBand", "ranks"), rows)


def _limit(value: int | None) -> str:
    return "unlimited" if value is None else f"{value:,}"


def clock_table(offsets: Sequence[ClockOffset], facts: Sequence[RankFacts]) -> list[str]:
    """Clocks of hosts against that of rank 0's."""
    rows = [
        (facts[offset.rank].host, f"{offset.seconds * 1e3:+.3f}", f"{offset.uncertainty * 1e3:.3f}")
        for offset in offsets
    ]
    return text_table(("host", "ms ahead of rank 0", "+-"), rows, right=("ms ahead of rank 0", "+-"))


def link_table(links: Sequence[LinkTime]) -> list[str]:
    """Slowest and fastest group of each axis, operation and size."""
    kinds: dict[tuple[str, str, int], list[LinkTime]] = {}
    for link in links:
        kinds.setdefault((link.axis, link.operation, link.nbytes), []).append(link)
    rows = []
    for (axis, operation, nbytes), found in kinds.items():
        slowest, fastest = max(found, key=lambda l: l.seconds), min(found, key=lambda l: l.seconds)
        rows.append(
            (
                axis,
                f"{len(found)} x {len(slowest.ranks)}",
                operation,
                f"{nbytes:,}",
                f"{fastest.seconds * 1e6:,.0f}",
                f"{slowest.seconds * 1e6:,.0f}",
                f"{fastest.bytes_per_s / 1e9:.3g}",
                f"{slowest.bytes_per_s / 1e9:.3g}",
                format_number_ranges(slowest.ranks),
            )
        )
    header = ("axis", "groups", "operation", "bytes", "best us", "worst us", "best GB/s", "worst GB/s", "slowest ranks")
    return text_table(header, rows, right=header[3:8])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
