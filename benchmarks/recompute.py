# SPDX-License-Identifier: Apache-2.0
"""What each form of recomputation costs in time and leaves in memory.

    python benchmarks/recompute.py [--rounds 5] [--precision ""|--bf16]

One model (8 layers, hidden 512, 8 heads, sequence 512, microbatch 2, vocabulary 8192) in one process of 2 threads; all
forms take a training step in turn, so that a noisy machine disturbs them alike. Time is the median of the ratios to the
step without recomputation in the same round. Bytes are what autograd is given to keep by the forward of a microbatch.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.autograd.graph import saved_tensors_hooks

from megatron_core.config.cli import parse
from megatron_core.model.microbatch import Microbatch
from megatron_core.parallel.context import single_process_context
from megatron_core.training.build import Run, build_run, initial_state
from megatron_core.training.run_data import open_data
from megatron_core.training.train_step import train_step

MODEL = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 "
    "--hidden-dropout 0 --attention-dropout 0 --mock-data --vocab-size 8192 --lr 1e-4 --lr-decay-style constant "
    "--eval-iters 0 --train-iters 1000000 --micro-batch-size 2 --global-batch-size 2"
)
FULL, SELECTIVE = "--recompute-granularity full", "--recompute-granularity selective --recompute-modules"
FORMS = {
    "nothing": "",
    "full, each layer": FULL,
    "full, groups of 4": f"{FULL} --recompute-num-layers 4",
    "full, first 4": f"{FULL} --recompute-method block --recompute-num-layers 4",
    "core_attn": f"{SELECTIVE} core_attn",
    "layernorm": f"{SELECTIVE} layernorm",
    "mlp, layernorm": f"{SELECTIVE} mlp layernorm",
}


def stepper(flags: str) -> tuple[Run, Callable[[], None]]:
    """A run and a closure that takes its next step."""
    config = parse(f"{MODEL} {flags}".split(), 1).config
    state = initial_state(config)
    run = build_run(config, single_process_context(), open_data(config), state)
    states = [state]

    def step() -> None:
        states[0], _ = train_step(run, states[0])

    return run, step


def kept_bytes(run: Run) -> int:
    """Bytes of the storages that the forward of a microbatch has autograd keep, weights left out."""
    tokens = torch.zeros(2, 513, dtype=torch.long)
    batch = Microbatch(position_ids=torch.arange(512)[None], tokens=tokens[:, :-1], labels=tokens[:, 1:])
    weights = {p.untyped_storage().data_ptr() for p in run.chunks[0].parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = run.chunks[0](None, batch)  # held, so that no address is given twice
    del losses
    return sum(kept.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="", help="a flag such as --bf16")
    options = parser.parse_args()
    torch.set_num_threads(2)
    runs = {name: stepper(f"{flags} {options.precision}") for name, flags in FORMS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in FORMS}
    for number in range(options.rounds + 1):  # the first one warms up
        for name, (_, step) in runs.items():
            start = time.perf_counter()
            step()
            if number:
                seconds[name].append(time.perf_counter() - start)
    for name, (run, _) in runs.items():
        ratio = statistics.median(mine / base for mine, base in zip(seconds[name], seconds["nothing"]))
        print(
            f"{name:18} {statistics.median(seconds[name]):6.2f} s a step, {(ratio - 1) * 100:+5.1f} %, "
            f"{kept_bytes(run) / 2**20:7.1f} MiB kept"
        )


if __name__ == "__main__":
    main()
