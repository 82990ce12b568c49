# SPDX-License-Identifier: Apache-2.0
"""Everything that needs a GPU, in one call: `python benchmarks/gpu_check.py [--out FILE]`; one GPU is enough.

Each check prints one line and the exit code is 1 if any failed. What they hold: training on the GPU follows the CPU in
fp64 and fp32, repeats bit for bit, trains in bf16 and fp16, keeps documents apart, and how fast a step is.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from megatron_core.config.cli import parse
from megatron_core.parallel.context import single_process_context
from megatron_core.training.build import Run, build_run, initial_state
from megatron_core.training.run_data import open_data
from megatron_core.training.state import RunState
from megatron_core.training.train_step import train_step

TINY = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
    "--micro-batch-size 2 --global-batch-size 8 --lr 1e-3 --train-iters 10 --mock-data --vocab-size 509 --eval-iters 0"
)
NO_DROPOUT = "--hidden-dropout 0 --attention-dropout 0"
GPT2_SMALL = (
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 16 --global-batch-size 16 --lr 1e-4 --train-iters 100 --mock-data --vocab-size 50257 "
    f"--eval-iters 0 --bf16 {NO_DROPOUT}"
)
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def start(flags: str, device: torch.device) -> tuple[Run, RunState]:
    """A run of these flags on one device."""
    config = parse(flags.split(), 1).config
    state = initial_state(config)
    return build_run(config, single_process_context(device), open_data(config), state), state


def curve(flags: str, device: torch.device, steps: int = 10) -> list[float]:
    """Losses and gradient norms of the first steps."""
    run, state = start(flags, device)
    values = []
    for _ in range(steps):
        state, outcome = train_step(run, state)
        values += [outcome.loss, outcome.grad_norm]
    return values


def gap(first: list[float], second: list[float]) -> float:
    """Largest relative difference."""
    return max(abs(a - b) / abs(b) for a, b in zip(first, second))


def follows_cpu(flags: str, limit: float) -> str:
    """The GPU's curve against the CPU's."""
    found = gap(curve(flags, GPU), curve(flags, CPU))
    assert found <= limit, f"differs from the CPU by {found:.2e}, allowed {limit:.0e}"
    return f"within {found:.1e} of the CPU"


def repeats(flags: str) -> str:
    """Two runs, the same bits."""
    assert curve(flags, GPU) == curve(flags, GPU), "two equal runs differ"
    return "two runs equal bit for bit"


def speed() -> str:
    """tokens/s and model FLOP/s of GPT-2 small in bf16."""
    from megatron_core.planner.flops import flops_per_token

    run, state = start(GPT2_SMALL, GPU)
    seconds = []
    for _ in range(12):
        begin = time.perf_counter()
        state, _ = train_step(run, state)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    rate = 16 * 1024 / sorted(seconds[2:])[len(seconds[2:]) // 2]
    tflops = rate * flops_per_token(run.config.model) / 1e12
    return f"{rate:.0f} tok/s, {tflops:.0f} TFLOP/s, peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"


CHECKS: dict[str, Callable[[], str]] = {
    "fp64": lambda: follows_cpu(f"{TINY} {NO_DROPOUT} --fp64", 1e-10),
    "fp32": lambda: follows_cpu(f"{TINY} {NO_DROPOUT}", 1e-4),
    "llama fp64": lambda: follows_cpu(
        f"{TINY} {NO_DROPOUT} --fp64 --swiglu --normalization RMSNorm --position-embedding-type rope "
        "--group-query-attention --num-query-groups 2 --qk-layernorm --disable-bias-linear",
        1e-10,
    ),
    "zero-bubble fp64": lambda: follows_cpu(f"{TINY} {NO_DROPOUT} --fp64 --pipeline-schedule zero-bubble", 1e-10),
    "documents fp64": lambda: follows_cpu(
        f"{TINY} {NO_DROPOUT} --fp64 --reset-position-ids --reset-attention-mask --eod-mask-loss", 1e-10
    ),
    "bf16": lambda: follows_cpu(f"{TINY} {NO_DROPOUT} --bf16", 0.03),
    "fp16": lambda: follows_cpu(f"{TINY} {NO_DROPOUT} --fp16 --initial-loss-scale 1024", 0.03),
    "repeatable": lambda: repeats(f"{TINY} --bf16"),
    "speed": speed,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the lines as JSON here too")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("this torch sees no GPU", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    results = {}
    for name, check in CHECKS.items():
        try:
            results[name] = check()
        except Exception:  # each check stands alone: the report of one failure must not lose the others
            results[name] = f"FAILED\n{traceback.format_exc()}"
        print(f"{name}: {results[name]}", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps({"gpu": torch.cuda.get_device_name(0), **results}, indent=1))
    return int(any(text.startswith("FAILED") for text in results.values()))


if __name__ == "__main__":
    sys.exit(main())
