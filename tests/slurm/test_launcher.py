# SPDX-License-Identifier: Apache-2.0
"""What Slurm tells a process, and what the launcher of the sbatch scripts does, on a real cluster; the run is a
stand-in that takes no time."""

import json
from collections.abc import Mapping
from pathlib import Path

from megatron_core.training.launch import Launch, detect
from tests.slurm.cluster import Cluster
from tests.slurm.sbatch_script import FOLDER, ROOT

WRITE = """\
import json, os, sys
with open(sys.argv[1] + os.environ["SLURM_PROCID"], "w") as file:
    json.dump(dict(os.environ), file)
"""

RUN = """\
import json, os, signal, sys
from pathlib import Path

save = Path(sys.argv[sys.argv.index("--save") + 1])
rank, start = os.environ["SLURM_PROCID"], os.environ.get("SLURM_RESTART_COUNT", "0")
print("hello from", rank, flush=True)
code = 0
if start == "0":
    signal.signal(signal.SIGUSR1, lambda *_: None)
    (save / f"ready-{rank}").touch()
    signal.pause()
    code = 75
(save / f"start-{start}-rank-{rank}.json").write_text(json.dumps([sys.argv[1:], dict(os.environ)]))
if rank == "0":
    (save / "exit.json").write_text(json.dumps({"code": code, "reason": "", "step": 1}))
sys.exit(code)
"""
"""Of two starts the first waits to be warned; every rank leaves what it was given."""


def write_job(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/bash", *lines]) + "\n")
    return str(path)


def environment(path: Path) -> Mapping[str, str]:
    variables: dict[str, str] = json.loads(path.read_text())
    return variables


def test_slurm_understands_what_every_script_asks_for(cluster: Cluster) -> None:
    """But for its size, which only a cluster of that size can grant."""
    small = ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1", "--gpus-per-node=0", "--mem=0"]
    for script in sorted(FOLDER.glob("*.sbatch")):
        array = ["--array=0-1"] if script.stem == "preprocess_array" else []
        cluster.run("sbatch", "--test-only", *small, *array, str(script), cwd=ROOT)


def test_ranks_are_what_a_step_started(cluster: Cluster, tmp_path: Path) -> None:
    """The batch script's own process and a step of one task are alone; a step may have unequal nodes."""
    (tmp_path / "write.py").write_text(WRITE)
    job = cluster.submit(
        "--nodes=2",
        "--ntasks-per-node=2",
        f"--output={tmp_path}/log",
        write_job(
            tmp_path / "job",
            "python3 write.py batch-",
            "srun --nodes=1 --ntasks=1 python3 write.py one-",
            "srun --ntasks=3 --distribution=block python3 write.py three-",
        ),
        cwd=tmp_path,
    )
    cluster.wait(job, "COMPLETED", 30)
    assert detect(environment(tmp_path / "batch-0")).launcher == "alone"
    assert detect(environment(tmp_path / "one-0")).launcher == "alone"
    found = [detect(environment(tmp_path / f"three-{rank}")) for rank in range(3)]
    assert [(launch.launcher, launch.rank, launch.world_size) for launch in found] == [("srun", r, 3) for r in range(3)]
    assert [(launch.local_rank, launch.local_world_size) for launch in found] == [(0, 2), (1, 2), (0, 1)]
    assert {(launch.address, launch.port) for launch in found} == {("n1", 20000 + job)}


def test_a_warned_run_goes_back_into_the_queue_and_comes_again(cluster: Cluster, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "run.py").write_text(RUN)
    script = write_job(tmp_path / "job", "source scripts/slurm/launch.sh", f"launch {run} {tmp_path}/run.py --one 1")
    words = ("--nodes=2", "--ntasks-per-node=2", "--requeue", "--open-mode=append", f"--output={tmp_path}/job.log")
    job = cluster.submit(*words, script, cwd=ROOT, PYTHON="python3")
    cluster.wait(job, "RUNNING", 20)
    cluster.until("all ranks are ready", lambda: len(list(run.glob("ready-*"))) == 4)
    cluster.run("scancel", "--batch", "--signal=USR1", str(job))
    told = cluster.wait(job, "COMPLETED", 30)
    assert told["Restarts"] == "1", (tmp_path / "job.log").read_text()
    words_of_first, variables = json.loads((run / "start-0-rank-3.json").read_text())
    assert words_of_first == ["--one", "1", "--save", str(run), "--load", str(run), "--exit-signal-handler"]
    assert variables["CUDA_DEVICE_MAX_CONNECTIONS"] == variables["OMP_NUM_THREADS"] == "1"
    _, variables = json.loads((run / "start-1-rank-3.json").read_text())
    assert detect(variables) == Launch(
        launcher="srun",
        rank=3,
        world_size=4,
        local_rank=1,
        local_world_size=2,
        address="127.0.0.1",
        port=20000 + job,
        threads_given=True,
        restarts=1,
    )
    logs = sorted((run / "logs").glob(f"{job}-node*.log"))
    assert [sorted(log.read_text().splitlines()) for log in logs] == [
        [f"{rank}: hello from {rank}" for rank in ranks for _ in range(2)] for ranks in ((0, 1), (2, 3))
    ], "a log a node, of both starts"
