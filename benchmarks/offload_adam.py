# SPDX-License-Identifier: Apache-2.0
"""The host optimizer of ZeRO-Offload beside DeepSpeed's CPUAdam and torch's fused AdamW, all on the CPU.

    python benchmarks/offload_adam.py [--parameters 200e6] [--threads 2] [--rounds 7]

Each does the whole chain from gradients as they arrive to weights as they go back: multiply fp32 gradients by one
factor (loss scale and clipping in one), AdamW on fp32 masters and moments, cast to bf16. The others do it as their
users have to: a pass over the gradients, the optimizer, a pass for the cast. Ours has its states where it puts them in
a run, in huge pages; `ours, small pages` works on the tensors that the others have. `ours, no llvmlite` is what it
falls back to: torch's kernel with the factor handed to it, as on the device, and the cast. All take turns in an order
that moves on by one each round; ratios are medians of rounds. GB/s counts 28 bytes a parameter, the least that AdamW
alone can move. DeepSpeed compiles its kernel at the first use; where it is missing it is left out.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

from megatron_core.optim.adamw import AdamHyper, Moments
from megatron_core.optim.host_adamw import HostAdamW, OnePass, compiled_pass
from megatron_core.optim.host_memory import host_zeros

FACTOR, LR, DECAY = 0.999, 1e-4, 0.1
HYPER = AdamHyper(beta1=0.9, beta2=0.95, eps=1e-8)
OURS, OTHERS = "ours", ("DeepSpeed", "torch fused")
GOAL = 1.2


class Contest:
    """The tensors and what each contestant does with them."""

    def __init__(self, parameters: int, threads: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.threads = threads
        self.steps = 0
        self.grad = torch.empty(parameters).normal_(0, 1e-3, generator=generator)
        self.out = torch.zeros(parameters, dtype=torch.bfloat16)
        self.weights = torch.nn.Parameter(torch.empty(parameters).normal_(0, 0.02, generator=generator))
        self.weights.grad = self.grad
        self.moments = Moments(torch.zeros(parameters), torch.zeros(parameters))

    def contestants(self) -> dict[str, Callable[[], None]]:
        """By name; each call is one step."""
        kernel = compiled_pass()
        if kernel is None:
            raise SystemExit("ours needs llvmlite here: pip install 'layoutfree[offload]'")
        m, v, weights = host_zeros([len(self.grad)] * 3, torch.float32)
        weights.copy_(self.weights.detach())
        found = {
            OURS: self.ours(kernel, weights, Moments(m, v)),
            "ours, small pages": self.ours(kernel, self.weights.detach(), self.moments),
            "ours, no llvmlite": self.ours(None, weights, Moments(m, v)),
        }
        try:
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else it looks for one and says so at length
            from deepspeed.ops.adam import DeepSpeedCPUAdam

            optimizer = DeepSpeedCPUAdam([self.weights], lr=LR, betas=(0.9, 0.95), weight_decay=DECAY)
            found["DeepSpeed"] = self.theirs(optimizer, 0)
        except ImportError as error:
            print(f"without DeepSpeed: {error}")
        optimizer = torch.optim.AdamW([self.weights], lr=LR, betas=(0.9, 0.95), weight_decay=DECAY, fused=True)
        found["torch fused"] = self.theirs(optimizer, torch.zeros(()))
        return found

    def ours(self, kernel: OnePass | None, weights: torch.Tensor, moments: Moments) -> Callable[[], None]:
        adam = HostAdamW(HYPER, threads=self.threads, kernel=kernel)

        def step() -> None:
            adam.update(
                weights, self.grad, moments, self.out,
                applied_steps=self.steps, lr=LR, weight_decay=DECAY, grad_factor=FACTOR,
            )  # fmt: skip

        return step

    def theirs(self, optimizer: torch.optim.Optimizer, count: int | torch.Tensor) -> Callable[[], None]:
        optimizer.state[self.weights] = {"step": count, "exp_avg": self.moments.m, "exp_avg_sq": self.moments.v}

        def step() -> None:
            self.grad.mul_(FACTOR)
            optimizer.step()
            self.out.copy_(self.weights.detach())

        return step


def measure(contest: Contest, rounds: int) -> dict[str, list[float]]:
    """Seconds of every contestant in every round; the first round, which compiles and warms up, does not count."""
    contestants = list(contest.contestants().items())
    seconds: dict[str, list[float]] = {name: [] for name, _ in contestants}
    for round_ in range(rounds + 1):
        turn = round_ % len(contestants)
        for name, step in contestants[turn:] + contestants[:turn]:
            begin = time.perf_counter()
            step()
            if round_ > 0:
                seconds[name].append(time.perf_counter() - begin)
            contest.steps += 1
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=200e6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    parameters, load = int(arguments.parameters), os.getloadavg()[0]
    seconds = measure(Contest(parameters, arguments.threads), arguments.rounds)
    print(
        f"{parameters / 1e6:.0f}M parameters, {arguments.threads} threads of {os.cpu_count()} cores, "
        f"{arguments.rounds} rounds, load {load:.1f} before"
    )
    for name, values in seconds.items():
        middle = statistics.median(values)
        ratio = statistics.median(one / ours for one, ours in zip(values, seconds[OURS]))
        print(
            f"  {name:<18}{middle:7.3f} s ({min(values):.3f} to {max(values):.3f}) "
            f"{28 * parameters / middle / 1e9:6.1f} GB/s  {ratio:5.2f} x ours"
        )
    present = [name for name in OTHERS if name in seconds]
    rounds = zip(seconds[OURS], *(seconds[name] for name in present))
    ratio = statistics.median(min(theirs) / ours for ours, *theirs in rounds)
    print(f"the faster of {' and '.join(present)} / ours: {ratio:.2f} (goal: {GOAL})")


if __name__ == "__main__":
    main()
