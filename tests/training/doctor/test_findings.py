# SPDX-License-Identifier: Apache-2.0
"""Each fault is found, with its numbers, and a healthy job has none."""

import dataclasses

from megatron_core.training.doctor import findings
from megatron_core.training.doctor.clock import ClockOffset
from megatron_core.training.doctor.facts import RankFacts
from megatron_core.training.doctor.links import LinkTime
from tests.training.doctor.example_facts import example


def job() -> list[RankFacts]:
    """Two healthy nodes of four GPUs."""
    return [example(rank, f"n{rank // 4 + 1}") for rank in range(8)]


def changed(rank: int, **values: object) -> list[RankFacts]:
    facts = job()
    facts[rank] = dataclasses.replace(facts[rank], **values)  # type: ignore[arg-type]
    return facts


def link(ranks: tuple[int, ...], seconds: float, nbytes: int = 2**20) -> LinkTime:
    return LinkTime(axis="tp", operation="ring", nbytes=nbytes, ranks=ranks, seconds=seconds)


def test_a_healthy_job() -> None:
    facts = job()
    assert [
        *findings.placement_findings(facts, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        *findings.version_findings(facts),
        *findings.setting_findings(facts),
        *findings.limit_findings(facts),
        *findings.clock_findings([ClockOffset(0, 0.0, 0.0), ClockOffset(4, -0.9, 0.1)], facts),
        *findings.shared_findings([""] * 8, facts),
        *findings.link_findings([link((2 * i, 2 * i + 1), 1.0 + i / 10) for i in range(4)], facts),
        *findings.link_findings([], facts),
    ] == []


def test_a_tensor_parallel_group_across_nodes() -> None:
    (found,) = findings.placement_findings(job(), [(0, 1), (3, 4)])
    assert found == (
        "tensor-parallel ranks 3-4 are on 2 nodes (n1, n2): set --tensor-model-parallel-size to a divisor of the ranks "
        "a node, or start ranks node by node"
    )


def test_one_gpu_for_two_ranks() -> None:
    (found,) = findings.placement_findings(changed(1, pci_address="0000:00:00.0"), [])
    assert "ranks 0-1 share one GPU (n1 0000:00:00.0)" in found and "CUDA_VISIBLE_DEVICES" in found
    cpus = [dataclasses.replace(fact, pci_address="", device="cpu") for fact in job()]
    assert list(findings.placement_findings(cpus, [])) == []


def test_a_rank_far_from_its_gpu() -> None:
    (found,) = findings.placement_findings(changed(2, device_node=1), [])
    assert found.startswith("rank 2 (n1) runs on NUMA node 0, its GPU hangs on node 1: bind it there")
    assert list(findings.placement_findings(changed(2, device_node=1, cpu_nodes=(0, 1)), [])) == []
    assert list(findings.placement_findings(changed(2, device_node=None), [])) == []


def test_too_few_processors() -> None:
    facts = [dataclasses.replace(fact, cpus=(0, 1)) if fact.host == "n2" else fact for fact in job()]
    (found,) = findings.placement_findings(facts, [])
    assert found == "n2: 4 ranks with GPUs share 2 processors: set --cpus-per-task"


def test_versions() -> None:
    (found,) = findings.version_findings(changed(5, versions={"torch": "2.12.0", "python": "3.11.7"}))
    assert found == (
        "torch differs: 2.13.0 on ranks 0-4,6-7 (n1, n2), 2.12.0 on ranks 5 (n2): install the same on all nodes"
    )
    (found,) = findings.version_findings(changed(5, versions={"torch": "2.13.0"}))
    assert found.startswith("python differs: 3.11.7 on ranks 0-4,6-7 (n1, n2), none on ranks 5 (n2)")
    commits = [dataclasses.replace(fact, versions={findings.COMMIT: fact.host}) for fact in job()]
    assert list(findings.version_findings(commits)) == []


def test_settings_that_differ() -> None:
    (found,) = findings.setting_findings(changed(7, settings={}))
    assert found == (
        "NCCL_DEBUG differs: WARN on ranks 0-6 (n1, n2), unset on ranks 7 (n2): set the same for all ranks"
    )
    devices = [dataclasses.replace(fact, settings={"CUDA_VISIBLE_DEVICES": str(fact.local_rank)}) for fact in job()]
    assert list(findings.setting_findings(devices)) == []


def test_settings_that_slow_down() -> None:
    settings = {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    first, second = findings.setting_findings([dataclasses.replace(fact, settings=settings) for fact in job()])
    assert first == "NCCL_IB_DISABLE=1: nodes talk over TCP: unset it unless that is meant"
    assert second.startswith("CUDA_DEVICE_MAX_CONNECTIONS=8: ") and second.endswith("set 1")


def test_too_many_threads() -> None:
    (found,) = findings.setting_findings(changed(3, threads=17))
    assert found == (
        "ranks 3 take more threads than they have processors (rank 3: 17 of 16): lower OMP_NUM_THREADS or raise "
        "--cpus-per-task"
    )


def test_limits() -> None:
    (found,) = findings.limit_findings(changed(4, open_files=256))
    assert found == ("at most 256 open files on n2, and 8 ranks want 528: raise ulimit -n (LimitNOFILE of slurmd)")
    (found,) = findings.limit_findings(changed(4, locked_memory=65536))
    assert found == (
        "locked memory is limited to 65,536 bytes on n2, which have InfiniBand: set ulimit -l unlimited (LimitMEMLOCK "
        "of slurmd)"
    )
    assert list(findings.limit_findings(changed(4, locked_memory=65536, infiniband=False))) == []
    assert list(findings.limit_findings(changed(4, open_files=None))) == []


def test_clocks() -> None:
    ahead, behind = findings.clock_findings([ClockOffset(0, 5.5, 0.1), ClockOffset(4, -1.2, 0.1)], job())
    assert ahead == "the clock of n1 is 5.500 s ahead of that of n1: run chrony or another NTP client on both"
    assert "n2 is 1.200 s behind that of n1" in behind
    assert list(findings.clock_findings([ClockOffset(4, 1.2, 0.3)], job())) == []


def test_shared_directory() -> None:
    (found,) = findings.shared_findings([""] * 4 + ["does not see in /x what rank 0 wrote there: gone"] * 4, job())
    assert found == (
        "shared directory, ranks 4-7 (n2): does not see in /x what rank 0 wrote there: gone: give a directory of a "
        "file system that all nodes mount"
    )


def test_slow_links_at_the_largest_size_among_at_least_three_groups() -> None:
    links = [link((0, 1), 1.0), link((2, 3), 1.1), link((4, 5), 5.5), link((6, 7), 9.0, nbytes=4)]
    (found,) = findings.link_findings(links, job())
    assert found == (
        "tp ranks 4-5 (n2) take 5.0 times the median of their axis for one ring of 1,048,576 bytes: look at their "
        "links, or leave these nodes out"
    )
    assert list(findings.link_findings(links[1:3], job())) == []


def test_many_hosts_are_not_all_listed() -> None:
    facts = [example(rank, f"n{rank}") for rank in range(9)]
    (found,) = findings.placement_findings(facts, [tuple(range(9))])
    assert "9 nodes (n0, n1, n2, n3 and 5 more nodes)" in found
