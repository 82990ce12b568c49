# SPDX-License-Identifier: Apache-2.0
"""A real Slurm of two nodes on this machine: munged, slurmctld and two slurmd, in a folder of their own."""

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_NEEDED = ("slurmctld", "slurmd", "sbatch", "munged")
_WAIT_S = 30.0

# cred_expire: a job that was requeued may not start before the credential of its last start has expired, by default
# after 2 minutes; 5 s is the least. SchedulerParameters: by default waiting jobs are looked at once a minute.
# config_overrides: the nodes have the cores that stand here, not those of the machine. The rest differs from a plain
# installation in paths and ports, and does without cgroups and a database.
_CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why no cluster can be started here; None where one can."""
    absent = [name for name in _NEEDED if shutil.which(name, path=_path()) is None]
    if absent:
        return f"no real Slurm: {', '.join(absent)} not installed (Debian, Ubuntu: apt install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "no real Slurm: its daemons have to be started by root"
    return None


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # Debian keeps daemons off the path of users


class Cluster:
    """Nodes n1 and n2 with 8 cores each; a context that ends all that it started, jobs included."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Jobs inherit the environment: that of a job that runs these tests would confuse them.
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_"))}
        self.environment = {**outer, "PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Cluster":
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        munge, state = self.folder / "munge", self.folder / "state"
        munge.mkdir(mode=0o755)
        state.mkdir()
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        user = pwd.getpwuid(os.geteuid()).pw_name
        host = socket.gethostname().split(".")[0]
        config = _CONFIG.format(folder=self.folder, user=user, host=host, ports=_free_ports(3))
        (self.folder / "slurm.conf").write_text(config)
        files = [f"--{kind}={munge / name}" for kind, name in _MUNGE_FILES.items()]
        self._daemon("munged", "--foreground", "--force", *files)
        self.until("munged listens", (munge / "socket").exists)
        self._daemon("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node)
        self.until("both nodes are idle", lambda: self.run("sinfo", "-h", "-N", "-o", "%N %T") == "n1 idle\nn2 idle\n")

    def __exit__(self, *failure: object) -> None:
        try:
            if len(self._daemons) > 1:
                self.run("scancel", "--full", "--signal=KILL", "--user", str(os.geteuid()), check=False)
                self.run("scancel", "--user", str(os.geteuid()), check=False)
                self.until("all jobs have ended", lambda: self.run("squeue", "-h", check=False) == "")
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
            for daemon in self._daemons:
                daemon.wait(_WAIT_S)

    def _daemon(self, *command: str) -> None:
        with (self.folder / f"{len(self._daemons)}-{command[0]}.log").open("wb") as output:
            self._daemons.append(
                subprocess.Popen(command, env=self.environment, stdout=output, stderr=subprocess.STDOUT)
            )

    def run(self, *command: str, check: bool = True, cwd: Path | None = None) -> str:
        """A command of Slurm's; what it said. Raises AssertionError with that where it failed."""
        done = subprocess.run(
            command, cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=_WAIT_S, check=False
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def submit(self, *words: str, cwd: Path, **variables: str) -> int:
        """sbatch with `words`; the job's number."""
        exported = ",".join(["ALL", *(f"{name}={value}" for name, value in variables.items())])
        return int(self.run("sbatch", "--parsable", f"--export={exported}", *words, cwd=cwd))

    def job(self, job: int) -> dict[str, str]:
        """What Slurm knows of a job: JobState, Restarts, ExitCode, ..."""
        words = self.run("scontrol", "--oneliner", "show", "job", str(job)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: int, state: str, seconds: float) -> dict[str, str]:
        """Wait until a job is in `state`. Raises AssertionError where it ends otherwise, or takes longer."""
        deadline = time.monotonic() + seconds
        while (told := self.job(job))["JobState"] != state:
            ended = told["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
            assert not ended, f"job {job} is {told['JobState']} ({told['ExitCode']}), not {state}\n{self.logs()}"
            assert time.monotonic() < deadline, f"job {job} is {told['JobState']} after {seconds} s\n{self.logs()}"
            time.sleep(0.2)
        return told

    def until(self, what: str, holds: Callable[[], bool], seconds: float = _WAIT_S) -> None:
        """Wait until something holds. Raises AssertionError where it takes longer."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not so after {seconds:.0f} s: {what}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self, lines: int = 25) -> str:
        """The last lines of what every daemon said."""
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
            for path in sorted(self.folder.glob("*.log"))
        )


_MUNGE_FILES = {
    "key-file": "key",
    "socket": "socket",
    "pid-file": "pid",
    "log-file": "log",
    "seed-file": "seed",
}


def _free_ports(count: int) -> Sequence[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
