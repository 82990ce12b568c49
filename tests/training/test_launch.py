# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from megatron_core.config.parallel import ParallelConfig
from megatron_core.errors import ConfigError
from megatron_core.training.launch import (
    Launch,
    choose_device,
    communication_settings,
    detect,
    first_host,
    process_group,
)

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "1234",
}
BATCH = {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_NODELIST": "node[07-08]",
    "SLURM_JOB_ID": "100042",
}
"""What a batch script sees."""
SRUN = {
    **BATCH,
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "node[07-08]",
}
"""What a rank sees that the same script's srun started."""


def test_nothing_set_is_a_world_of_one() -> None:
    assert detect({}) == Launch(launcher="alone")


def test_torchrun() -> None:
    expected = Launch(
        launcher="torchrun", rank=5, world_size=8, local_rank=1, local_world_size=4, address="n1", port=1234
    )
    assert detect(TORCHRUN) == expected
    assert detect({**SRUN, **TORCHRUN}) == expected, "torchrun under srun counts as torchrun"


def test_srun() -> None:
    launch = detect({**SRUN, "OMP_NUM_THREADS": "4"})
    assert (launch.launcher, launch.rank, launch.world_size) == ("srun", 5, 8)
    assert (launch.local_rank, launch.local_world_size) == (1, 4)
    assert (launch.address, launch.port) == ("node07", 24042)
    assert launch.threads_given


def test_srun_takes_the_address_and_port_it_is_given() -> None:
    launch = detect({**SRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501"})
    assert (launch.address, launch.port) == ("10.0.0.1", 29501)


def test_a_single_slurm_task_is_alone() -> None:
    assert detect({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}).launcher == "alone"
    one_of_the_job = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NODELIST": "node07"}
    assert detect({**BATCH, **one_of_the_job}) == Launch(launcher="alone"), "srun -n1"


def test_the_batch_script_is_not_the_first_of_ranks_that_no_one_started() -> None:
    assert detect(BATCH) == Launch(launcher="alone")


@pytest.mark.parametrize(("node", "tasks"), [(0, 4), (1, 4), (2, 3), (3, 1)])
def test_nodes_may_have_unequal_numbers_of_tasks(node: int, tasks: int) -> None:
    variables = {"SLURM_STEP_TASKS_PER_NODE": "4(x2),3,1", "SLURM_NODEID": str(node), "SLURM_STEP_NUM_TASKS": "12"}
    assert detect({**SRUN, **variables}).local_world_size == tasks


@pytest.mark.parametrize(
    ("variables", "restarts"),
    [
        (TORCHRUN, 0),
        (SRUN, 0),
        ({**SRUN, "SLURM_RESTART_COUNT": "3"}, 3),
        ({**BATCH, "SLURM_RESTART_COUNT": "1"}, 1),
        ({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"}, 2),
        ({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2", "SLURM_RESTART_COUNT": "3"}, 5),
    ],
)
def test_how_often_the_job_ran_before(variables: dict[str, str], restarts: int) -> None:
    assert detect(variables).restarts == restarts


@pytest.mark.parametrize(
    ("variables", "name"),
    [({**TORCHRUN, "RANK": "five"}, "RANK"), ({**SRUN, "SLURM_PROCID": ""}, "SLURM_PROCID")],
)
def test_what_is_no_number_is_named(variables: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError, match=f"variable {name} is"):
        detect(variables)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("n1", "n1"),
        ("a1,b2", "a1"),
        ("n[07-09,12]", "n07"),
        ("n[3,5]", "n3"),
        ("rack[1-2]-gpu,x", "rack1-gpu"),
        ("rack[2-3]n[0-7],x", "rack2n0"),
        ("gpu-a100-[001-128]", "gpu-a100-001"),
        ("n1.cluster.org", "n1.cluster.org"),
    ],
)
def test_first_host_of_a_node_list(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


@pytest.mark.parametrize("nodelist", ["", "[1-2]"])
def test_a_node_list_without_a_host(nodelist: str) -> None:
    with pytest.raises(ConfigError, match="set MASTER_ADDR"):
        first_host(nodelist)


def test_what_steers_communication_is_reported() -> None:
    environ = {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "HOME": "/",
        "OMP": "x",
    }
    assert list(communication_settings(environ)) == ["CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_DEBUG", "OMP_NUM_THREADS"]


def test_nccl_needs_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="use gloo"):
        choose_device(Launch(launcher="alone"), ParallelConfig(distributed_backend="nccl"))


@pytest.mark.parametrize(
    ("ranks", "given", "expected"), [(1, False, 8), (3, False, 2), (16, False, 1), (3, True, None)]
)
def test_ranks_share_the_cores_unless_told(
    ranks: int, given: bool, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    launch = Launch(launcher="torchrun", local_world_size=ranks, threads_given=given)
    assert choose_device(launch, ParallelConfig(distributed_backend="gloo")) == torch.device("cpu")
    assert chosen == ([] if expected is None else [expected])


def _pretend_gpus(monkeypatch: pytest.MonkeyPatch, count: int, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend_gpus(monkeypatch, 2, (8, 0))
    assert choose_device(Launch(launcher="torchrun", local_rank=1), ParallelConfig()) == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="local rank 2 has no GPU: this node shows 2"):
        choose_device(Launch(launcher="torchrun", local_rank=2), ParallelConfig())


def test_a_gpu_that_torch_was_not_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend_gpus(monkeypatch, 1, (7, 0))
    with pytest.raises(ConfigError, match=r"Tesla V100 is sm_70.*sm_80, sm_90.*cu126"):
        choose_device(Launch(launcher="alone"), ParallelConfig())


def test_a_world_of_one_needs_no_process_group() -> None:
    with process_group(Launch(launcher="alone"), torch.device("cpu"), 1.0):
        assert not dist.is_initialized()


def test_ranks_talk_over_the_store(tmp_path: Path) -> None:
    """Two processes meet by Slurm's variables alone; each reads what the other's clone wrote."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import torch\n"
        "from megatron_core.training.launch import detect, process_group\n"
        "launch = detect()\n"
        "with process_group(launch, torch.device('cpu'), 1.0) as store:\n"
        "    own = store.clone()\n"
        "    own.set(str(launch.rank), 'here')\n"
        "    own.wait([str(1 - launch.rank)])\n"
        "    torch.distributed.barrier()\n"
    )
    port = str(20000 + os.getpid() % 10000)
    slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "1"}
    common = {**os.environ, **slurm, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen([sys.executable, str(script)], env={**common, "SLURM_PROCID": r, "SLURM_LOCALID": r})
        for r in ("0", "1")
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0]


def test_a_rank_that_meets_nobody_says_where_it_looked() -> None:
    launch = Launch(launcher="srun", rank=1, world_size=2, port=1)
    told = r"rank 1 of 2 did not meet the others at 127.0.0.1:1 within 0.01 minutes"
    with pytest.raises(ConfigError, match=told), process_group(launch, torch.device("cpu"), 0.01):
        pass
