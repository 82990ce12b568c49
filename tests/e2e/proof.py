# SPDX-License-Identifier: Apache-2.0
"""Trains the same small model at any layout and compares: the ground of the equality proofs.

DESIGN's meaning of "equal to 1e-10": max|a - b| <= 1e-10 max|reference| + 1e-12 for each tensor.
"""

import functools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from megatron_core.checkpoint.held import held_tensors
from megatron_core.config.cli import parse
from megatron_core.config.run import RunConfig
from megatron_core.data.indexed_writer import IndexedWriter
from megatron_core.parallel.context import ParallelContext
from megatron_core.parallel.groups import create_context
from megatron_core.training.build import Run
from megatron_core.training.exit_file import LastWord
from megatron_core.training.mesh import grid_of, kv_replicas
from megatron_core.training.run_data import RunData, open_data
from megatron_core.training.session import begin, run_to_end
from megatron_core.training.signals import SignalFlag
from megatron_core.training.state import RunState
from megatron_core.training.stop import StopRequests
from megatron_core.training.train_step import train_step
from tests.e2e.gather_weights import gather_weights
from tests.rank_pool import run_ranks

SMALL = (
    "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 "
    "--micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-3 --lr-decay-style constant "
    "--make-vocab-size-divisible-by 1 --eval-iters 0 --num-workers 0 --ddp-bucket-size 2000 --overlap-grad-reduce"
)
NO_DROPOUT = "--hidden-dropout 0 --attention-dropout 0"
MOCK = "--mock-data --vocab-size 61"

FAMILIES = {
    "gpt2": f"{MOCK} {NO_DROPOUT}",
    "llama": f"{MOCK} {NO_DROPOUT} --normalization RMSNorm --swiglu --position-embedding-type rope "
    "--rotary-percent 0.5 --untie-embeddings-and-output-weights --disable-bias-linear --group-query-attention "
    "--num-query-groups 2 --ffn-hidden-size 48",
    "dropout": f"{MOCK} --hidden-dropout 0.1 --attention-dropout 0.2",
    "qk": f"{MOCK} {NO_DROPOUT} --qk-layernorm --group-query-attention --num-query-groups 1 --add-qkv-bias "
    "--position-embedding-type rope --rotary-interleaved --disable-bias-linear",
    "stable": f"{MOCK} {NO_DROPOUT} --embed-layernorm --embedding-gradient-shrink 0.1 --z-loss-coeff 1e-2 "
    "--apply-query-key-layer-scaling --kv-channels 12 --squared-relu --weight-decay 0.1 --clip-grad 0.5",
}
"""Flags by model family; `documents` below needs a data set on disk and so a folder."""


def corpus(folder: Path) -> str:
    """Flags of 40 documents of 5 to 40 tokens on disk; id 63 ends one."""
    prefix = folder / "documents"
    if not prefix.with_suffix(".idx").exists():
        random = np.random.default_rng(1234)
        with IndexedWriter(str(prefix), np.dtype(np.uint16)) as writer:
            for length in random.integers(5, 41, 40):
                writer.add_document(np.array([*random.integers(0, 63, length - 1), 63]))
    return f"--data-path {prefix} --split 100,0,0 --tokenizer-type NullTokenizer --vocab-size 63"


def documents(folder: Path) -> str:
    """Flags of a family that packs the documents of `corpus` and masks by document."""
    return f"{corpus(folder)} {NO_DROPOUT} --reset-position-ids --reset-attention-mask --eod-mask-loss"


@dataclass(frozen=True)
class Curve:
    """What a run did; weights are whole, by global name."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, np.ndarray]


def config_of(flags: str, world_size: int) -> RunConfig:
    """The resolved config of SMALL with these flags on top."""
    small = SMALL.replace("--train-iters 10", "") if "--train-samples" in flags else SMALL
    return parse(f"{small} {flags}".split(), world_size).config


def ready(rank: int, world_size: int, flags: str) -> tuple[RunConfig, ParallelContext, RunData]:
    """What a run is built from, on one rank of an initialised world; one thread, so that no test waits for others."""
    torch.set_num_threads(1)
    config = config_of(flags, world_size)
    ctx = create_context(grid_of(config, world_size), rank, torch.device("cpu"), kv_replicas=kv_replicas(config))
    return config, ctx, open_data(config)


def start_rank(rank: int, world_size: int, flags: str) -> tuple[Run, RunState]:
    """One rank of an initialised world, ready for its first step, or for the next one after --load."""
    begun = begin(*ready(rank, world_size, flags))
    return begun.run, begun.state


def nobody(run: Run) -> StopRequests:
    """Requests of a run that nobody asks to stop."""
    return StopRequests(run.config.training, SignalFlag(enabled=False), rank=0, started=0.0)


def run_whole(world_size: int, flags: str) -> None:
    """A run from its first step to its exit.json, on the rank pool, with all that the command line would do."""
    with tempfile.TemporaryDirectory() as folder:
        codes = run_ranks(run_rank, world_size, flags, f"{folder}/store")
    assert codes == [0] * world_size


def run_rank(rank: int, world_size: int, flags: str, store: str) -> int:
    """One rank of `run_whole`; `store`: a file that does not exist yet."""
    begun = begin(*ready(rank, world_size, flags))
    last_word = LastWord(begun.run.config.checkpoint.save, rank)
    return run_to_end(begun, dist.FileStore(store, world_size), nobody(begun.run), last_word, time.monotonic())


def whole_weights(run: Run) -> dict[str, torch.Tensor] | None:
    """The weights as they stand, whole, by global name, on rank 0; all ranks must call."""
    run.weight_gather.finish()
    weights = gather_weights(run.reducer.parameters, run.ctx)
    return None if weights is None else {name: tensor.clone() for name, tensor in weights.items()}


def adam_moments(run: Run) -> dict[str, dict[str, torch.Tensor]]:
    """This rank's Adam moments `m` and `v` by parameter name, in local shapes."""
    held = held_tensors(run.reducer.buckets, run.optimizer, with_optim=True)
    found: dict[str, dict[str, torch.Tensor]] = {}
    for tensor in held:
        section, _, name = tensor.name.partition("/")
        if section.startswith("adam_"):
            found.setdefault(name, {})[section.removeprefix("adam_")] = tensor.values
    return found


def train_rank(rank: int, world_size: int, flags: str, steps: int) -> Curve | None:
    """Train `steps` steps on one rank of an initialised world; the curve on rank 0."""
    run, state = start_rank(rank, world_size, flags)
    losses, norms = [], []
    for _ in range(steps):
        state, outcome = train_step(run, state)
        losses.append(outcome.loss)
        norms.append(outcome.grad_norm)
    weights = whole_weights(run)
    run.source.close()
    if weights is None:
        return None
    return Curve(losses, norms, {name: tensor.double().numpy() for name, tensor in weights.items()})


@functools.cache
def reference(flags: str, steps: int = 10) -> Curve:
    """The one-process run of these flags."""
    curve = train_rank(0, 1, flags, steps)
    assert curve is not None, "rank 0 returns its curve"
    return curve


def assert_equal(curve: Curve, expected: Curve, *, curve_rtol: float = 1e-10, weight_rtol: float = 1e-10) -> None:
    """Losses, gradient norms and every weight agree by DESIGN's rule."""
    pairs = [("losses", curve.losses, expected.losses, curve_rtol), ("norms", curve.norms, expected.norms, curve_rtol)]
    assert curve.weights.keys() == expected.weights.keys()
    pairs += [(name, curve.weights[name], expected.weights[name], weight_rtol) for name in expected.weights]
    for name, got, want, rtol in pairs:
        gap = float(np.max(np.abs(np.subtract(got, want))))
        limit = rtol * float(np.max(np.abs(want))) + 1e-12
        assert gap <= limit, f"{name}: differs by {gap:.3g}, allowed {limit:.3g}"
