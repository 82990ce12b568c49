# SPDX-License-Identifier: Apache-2.0
"""1-bit Adam beside plain Adam over a network that is really slow, on one machine and without hardware.

    python benchmarks/slow_network.py [--rates 100 1000] [--steps 6]

Two network namespaces joined by a veth pair, one rank of dp 2 in each, one thread a rank; `tc` shapes both ends to so
many Mbit/s. Whole runs of the same model with either optimizer, gradients in fp32; step times are medians of what
metrics.jsonl says, for 1-bit Adam over its compressed steps. Bytes are what the link has carried, headers included.
Needs root and iproute2 and says so where it cannot run; goal: 4 x at 100 Mbit/s.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

from megatron_core.training.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[1]
MODEL = (
    "--num-layers 6 --hidden-size 512 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 "
    "--micro-batch-size 1 --global-batch-size 2 --hidden-dropout 0 --attention-dropout 0 --mock-data --vocab-size 256 "
    "--make-vocab-size-divisible-by 8 --lr 1e-4 --lr-decay-style constant --eval-iters 0 --train-iters 1000000 "
    "--log-interval 1 --num-workers 0 --overlap-grad-reduce --ddp-bucket-size 4000000"
)
PARAMETERS = 6 * 12 * 512**2 + 384 * 512
FREEZE = 2
GOAL = 4.0  # at 100 Mbit/s
_NAMES = [f"slow{os.getpid()}n{end}" for end in (0, 1)]
"""Of the namespaces and, in each, of its end of the cable; an interface's has at most 15 letters."""


def why_not() -> str | None:
    """What this machine lacks, or None."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: install iproute2"
    made = subprocess.run(["ip", "netns", "add", _NAMES[0]], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"this machine makes no network namespace: {made.stderr.strip()}"
    _run("ip", "netns", "delete", _NAMES[0])
    return None


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def cable(mbit: int) -> Iterator[None]:
    """Both namespaces, 10.98.0.1 and 10.98.0.2, joined at that rate each way."""
    with contextlib.ExitStack() as stack:
        for name in _NAMES:
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)  # takes its end of the cable along
        first, second = _NAMES
        _run("ip", "link", "add", first, "netns", first, "type", "veth", "peer", "name", second, "netns", second)
        for number, name in enumerate(_NAMES, 1):
            _run("ip", "-n", name, "address", "add", f"10.98.0.{number}/24", "dev", name)
            for device in ("lo", name):
                _run("ip", "-n", name, "link", "set", device, "up")
            shape = f"tc -n {name} qdisc add dev {name} root tbf rate {mbit}mbit burst 256kb latency 100ms"
            _run(*shape.split())
        yield


def sent_bytes() -> int:
    """What the first end has sent so far."""
    (link,) = json.loads(_run("ip", "-n", _NAMES[0], "-s", "-j", "link", "show", "dev", _NAMES[0]))
    return int(link["stats64"]["tx"]["bytes"])


def run(flags: str, steps: int) -> tuple[list[float], int]:
    """A whole run over the cable: seconds of each step, and the bytes that the first rank has sent."""
    before = sent_bytes()
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, str(ROOT / "pretrain_gpt.py"), *MODEL.split(), *flags.split(), "--save", folder]
        ranks = []
        for number, name in enumerate(_NAMES):
            place = {"RANK": number, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "OMP_NUM_THREADS": 1}
            meeting = {"MASTER_ADDR": "10.98.0.1", "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": name}
            environment = {**os.environ, **{key: str(value) for key, value in place.items()}, **meeting}
            command = ["ip", "netns", "exec", name, *program, "--exit-interval", str(steps), "--no-save-optim"]
            ranks.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
        try:
            output = [rank.communicate()[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(rank.returncode for rank in ranks):
            raise SystemExit("\n".join(output))
        records = read_metrics(Path(folder) / "metrics.jsonl")
    return [record["step_time_s"] for record in records if "loss" in record], sent_bytes() - before


def compare(mbit: int, steps: int) -> None:
    """Both optimizers at one rate."""
    with cable(mbit):
        adam, adam_bytes = run("", steps)
        onebit, onebit_bytes = run(f"--optimizer onebit-adam --onebit-freeze-step {FREEZE}", FREEZE + steps)
    plain, compressed = statistics.median(adam[1:]), statistics.median(onebit[FREEZE:])
    a_step = adam_bytes / steps
    compressed_bytes = (onebit_bytes - FREEZE * a_step) / steps
    goal = f" (goal {GOAL:g})" if mbit == 100 else ""
    print(
        f"{mbit:5} Mbit/s: AdamW {plain:.2f} s a step and {a_step / 1e6:.1f} MB, 1-bit Adam {compressed:.2f} s and "
        f"{compressed_bytes / 1e6:.2f} MB: {plain / compressed:.1f} x{goal}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 1000], metavar="MBIT")
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    reason = why_not()
    if reason is not None:
        print(f"skipped: {reason}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the namespaces go
    print(f"{PARAMETERS / 1e6:.0f} million parameters, dp 2")
    for mbit in arguments.rates:
        compare(mbit, arguments.steps)


if __name__ == "__main__":
    main()
