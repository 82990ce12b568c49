# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a job, from what its ranks told: each fault with its numbers and what to set. Pure."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from megatron_core.training.doctor.clock import ClockOffset
from megatron_core.training.doctor.facts import RankFacts
from megatron_core.training.doctor.links import LinkTime
from megatron_core.training.doctor.number_ranges import format_number_ranges
from megatron_core.training.doctor.versions import COMMIT

MOST_CLOCK_SKEW_S = 1.0
SLOW_LINK = 2.0  # times the median of its axis
_FILES_PER_RANK, _FILES_BESIDES = 2, 512
_OWN_BY_RANK = {"CUDA_VISIBLE_DEVICES"}
_TURNED_OFF = {
    "NCCL_P2P_DISABLE": "GPUs of a node talk through host memory",
    "NCCL_SHM_DISABLE": "GPUs of a node talk through the network",
    "NCCL_IB_DISABLE": "nodes talk over TCP",
}


def ranks_by(pairs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Ranks of (value, rank) by value, the largest set first."""
    found: dict[str, list[int]] = {}
    for value, rank in pairs:
        found.setdefault(value, []).append(rank)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def spread(by_value: Mapping[str, Sequence[int]], facts: Sequence[RankFacts]) -> str:
    """ "2.13.0 on ranks 0-7 (n1), 2.12.0 on ranks 8-15 (n2)"."""
    return ", ".join(
        f"{value} on ranks {format_number_ranges(ranks)} ({_hosts(facts, ranks)})" for value, ranks in by_value.items()
    )


def placement_findings(facts: Sequence[RankFacts], tp_groups: Sequence[Sequence[int]]) -> Iterator[str]:
    """Tensor-parallel groups across nodes, GPUs shared by ranks, ranks far from their GPU or short of processors."""
    for group in tp_groups:
        hosts = {facts[rank].host for rank in group}
        if len(hosts) > 1:
            yield (
                f"tensor-parallel ranks {format_number_ranges(group)} are on {len(hosts)} nodes "
                f"({_hosts(facts, group)}): set --tensor-model-parallel-size to a divisor of the ranks a node, or "
                "start ranks node by node"
            )
    gpus = [fact for fact in facts if fact.pci_address]
    for place, ranks in ranks_by((f"{fact.host} {fact.pci_address}", fact.rank) for fact in gpus).items():
        if len(ranks) > 1:
            yield (
                f"ranks {format_number_ranges(ranks)} share one GPU ({place}): start as many ranks a node as it has "
                "GPUs, and leave CUDA_VISIBLE_DEVICES to the launcher"
            )
    for fact in gpus:
        if fact.device_node is not None and fact.cpu_nodes and fact.device_node not in fact.cpu_nodes:
            yield (
                f"rank {fact.rank} ({fact.host}) runs on NUMA node {format_number_ranges(fact.cpu_nodes)}, its GPU "
                f"hangs on node {fact.device_node}: bind it there (srun --cpu-bind, numactl) or do not bind it"
            )
    for host, ranks in ranks_by((fact.host, fact.rank) for fact in gpus).items():
        cpus = {cpu for rank in ranks for cpu in facts[rank].cpus}
        if len(cpus) < len(ranks):
            yield f"{host}: {len(ranks)} ranks with GPUs share {len(cpus)} processors: set --cpus-per-task"


def version_findings(facts: Sequence[RankFacts]) -> Iterator[str]:
    """Programs that are not the same everywhere."""
    # The source tells more than the commit, which a node may not be able to find out.
    for name in sorted({name for fact in facts for name in fact.versions} - {COMMIT}):
        found = ranks_by((fact.versions.get(name, "none"), fact.rank) for fact in facts)
        if len(found) > 1:
            yield f"{name} differs: {spread(found, facts)}: install the same on all nodes"


def setting_findings(facts: Sequence[RankFacts]) -> Iterator[str]:
    """Environment variables that differ between ranks, that slow things down, or that ask for too many threads."""
    for name in sorted({name for fact in facts for name in fact.settings} - _OWN_BY_RANK):
        found = ranks_by((fact.settings.get(name, "unset"), fact.rank) for fact in facts)
        if len(found) > 1:
            yield f"{name} differs: {spread(found, facts)}: set the same for all ranks"
    first = facts[0].settings
    for name, effect in _TURNED_OFF.items():
        if first.get(name, "0") != "0":
            yield f"{name}={first[name]}: {effect}: unset it unless that is meant"
    if facts[0].pci_address and first.get("CUDA_DEVICE_MAX_CONNECTIONS", "1") != "1":
        yield (
            f"CUDA_DEVICE_MAX_CONNECTIONS={first['CUDA_DEVICE_MAX_CONNECTIONS']}: collectives may start after the "
            "matrix products that they are to run beside: set 1"
        )
    crowded = [fact for fact in facts if fact.threads > len(fact.cpus)]
    if crowded:
        worst = crowded[0]
        yield (
            f"ranks {format_number_ranges(fact.rank for fact in crowded)} take more threads than they have processors "
            f"(rank {worst.rank}: {worst.threads} of {len(worst.cpus)}): lower OMP_NUM_THREADS or raise --cpus-per-task"
        )


def limit_findings(facts: Sequence[RankFacts]) -> Iterator[str]:
    """Limits of the nodes that a job of this size would meet."""
    needed = _FILES_PER_RANK * len(facts) + _FILES_BESIDES
    short = [fact for fact in facts if fact.open_files is not None and fact.open_files < needed]
    if short:
        short_hosts = _hosts(facts, [fact.rank for fact in short])
        yield (
            f"at most {min(fact.open_files or 0 for fact in short):,} open files on {short_hosts}, and {len(facts):,} "
            f"ranks want {needed:,}: raise ulimit -n (LimitNOFILE of slurmd)"
        )
    locked = [fact for fact in facts if fact.infiniband and fact.locked_memory is not None]
    if locked:
        yield (
            f"locked memory is limited to {min(fact.locked_memory or 0 for fact in locked):,} bytes on "
            f"{_hosts(facts, [fact.rank for fact in locked])}, which have InfiniBand: "
            "set ulimit -l unlimited (LimitMEMLOCK of slurmd)"
        )


def clock_findings(offsets: Sequence[ClockOffset], facts: Sequence[RankFacts]) -> Iterator[str]:
    """Clocks that are surely off by more than a second."""
    for offset in offsets:
        if abs(offset.seconds) - offset.uncertainty > MOST_CLOCK_SKEW_S:
            yield (
                f"the clock of {facts[offset.rank].host} is {abs(offset.seconds):.3f} s "
                f"{'ahead of' if offset.seconds > 0 else 'behind'} that of {facts[0].host}: run chrony or another NTP "
                "client on both"
            )


def shared_findings(problems: Sequence[str], facts: Sequence[RankFacts]) -> Iterator[str]:
    """Ranks that do not see one shared directory, by what is wrong."""
    bad = [fact for fact in facts if problems[fact.rank]]
    for problem, ranks in ranks_by((problems[fact.rank], fact.rank) for fact in bad).items():
        yield (
            f"shared directory, ranks {format_number_ranges(ranks)} ({_hosts(facts, ranks)}): {problem}: give a "
            "directory of a file system that all nodes mount"
        )


def link_findings(links: Sequence[LinkTime], facts: Sequence[RankFacts]) -> Iterator[str]:
    """Groups much slower than the median of their axis at the largest size; of fewer than three, none can be."""
    largest = max((link.nbytes for link in links), default=0)
    kinds: dict[tuple[str, str], list[LinkTime]] = {}
    for link in links:
        if link.nbytes == largest:
            kinds.setdefault((link.axis, link.operation), []).append(link)
    for (axis, operation), found in kinds.items():
        median = statistics.median(link.seconds for link in found)
        for link in found:
            if link.seconds > SLOW_LINK * median:
                yield (
                    f"{axis} ranks {format_number_ranges(link.ranks)} ({_hosts(facts, link.ranks)}) take "
                    f"{link.seconds / median:.1f} times the median of their axis for one {operation} of {largest:,} "
                    "bytes: look at their links, or leave these nodes out"
                )


def _hosts(facts: Sequence[RankFacts], ranks: Iterable[int]) -> str:
    hosts = sorted({facts[rank].host for rank in ranks})
    return ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more nodes" if len(hosts) > 4 else "")
