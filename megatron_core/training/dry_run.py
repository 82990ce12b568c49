# SPDX-License-Identifier: Apache-2.0
"""One whole step of any rank of any layout on one machine without a GPU: the real training code on tensors that have
shapes and no memory.

Tensors are torch's fake ones and the process group is torch's "fake" backend, whose collectives are over at once and
bring nothing; all else is what a rank of the real job runs, from `build_run` to `train_step`. Where the host asks a
tensor for a number it gets 1. Seen are the shapes of what is communicated, in order, and the live bytes of the device
as `live_bytes.py` counts them. Not seen is what is no tensor: the CUDA context, NCCL's buffers, workspaces of cuBLAS
and cuDNN, and what the allocator rounds up, caches and cannot use again (`planner/memory.py` has an allowance).
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megatron_core.config.data import DataConfig
from megatron_core.config.run import RunConfig
from megatron_core.config.training import TrainingConfig
from megatron_core.data.build import Datasets
from megatron_core.data.build_tokenizer import build_tokenizer
from megatron_core.data.mock_samples import MockSamples
from megatron_core.model.gpt import ChunkPlan, build_chunks
from megatron_core.model.parameters import ParameterFactory
from megatron_core.parallel.collective_log import Call, CollectiveLog
from megatron_core.parallel.context import single_process_context
from megatron_core.parallel.groups import create_context
from megatron_core.planner.stage_layers import stage_layers
from megatron_core.tensor_parallel.shard_spec import spec_parameters
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue
from megatron_core.training.batch_schedule import batch_schedule
from megatron_core.training.build import DTYPES, Run, build_run, initial_state
from megatron_core.training.live_bytes import counted
from megatron_core.training.mesh import grid_of, kv_replicas
from megatron_core.training.run_data import RunData, document_rules
from megatron_core.training.state import RunState
from megatron_core.training.train_step import train_step


@dataclass(frozen=True)
class Communicated:
    """One collective, or one transfer between two stages."""

    call: Call
    shape: tuple[int, ...]
    """Of the largest tensor that it was given: what is gathered or scattered is whole."""
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Of that tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What one rank did in a step of the largest batch."""

    rank: int
    stage: int
    layers: tuple[range, ...]
    """Of each of its chunks."""
    parameters: int
    """Elements that it holds."""
    microbatches: int
    message_shape: tuple[int, int, int]
    """Of what crosses stages: [s, b, h], or with sequence parallelism [s/tp, b, h]."""
    live_bytes: Mapping[str, int]
    """By the categories of `live_bytes.py`; total is the peak."""
    communicated: tuple[Communicated, ...]
    """In order."""


def dry_run(config: RunConfig, world_size: int, rank: int, *, most: int | None = None) -> DryRun:
    """Take a step as `rank` of a resolved config's run on `world_size` ranks, with `most` microbatches or all.

    Nobody may be in a process group. Raises DataError where no vocabulary is known.
    """
    config = dataclasses.replace(config, data=_without_files(config.data), training=_one_step(config, world_size, most))
    data = _mock_data(config)
    watcher = _Watcher()
    with _fake_world(rank, world_size), _fake_tensors(), watcher:
        ctx = create_context(
            grid_of(config, world_size),
            rank,
            torch.device("cpu"),
            kv_replicas=kv_replicas(config),
            log=watcher.log,
        )
        state = initial_state(config)
        run = build_run(config, ctx, data, state, draws_weights=False)
        watcher.log.calls.clear()
        return _step(run, state, watcher)


def model_parameters(config: RunConfig, vocab_size: int) -> int:
    """Elements of the whole model, each once, a tied table too; vocabulary padding is none."""
    model = config.with_vocabulary(vocab_size).model
    dtype = DTYPES[config.optim.precision]
    with _fake_tensors():
        factory = ParameterFactory(model, single_process_context(), WeightGradientQueue(), None, dtype, False)
        chunks = nn.ModuleList(build_chunks(factory, [ChunkPlan(range(model.num_layers))]))
        return sum(math.prod(parameter.spec.shape) for parameter in spec_parameters(chunks))


def vocabulary(config: RunConfig) -> int:
    """Ids of the model: --vocab-size, without a look at tokenizer files; theirs where it is not given."""
    if config.model.vocab_size is not None:
        return config.model.vocab_size
    return build_tokenizer(config.data).vocab_size


def _step(run: Run, state: RunState, watcher: "_Watcher") -> DryRun:
    with counted(run) as live:
        train_step(run, state)
    run.source.close()
    stage, grid = run.ctx.pp.coordinate, run.ctx.grid
    layers = stage_layers(run.config.model, run.config.parallel)
    return DryRun(
        rank=run.ctx.rank,
        stage=stage,
        layers=layers[stage :: grid.pp],
        parameters=sum(parameter.numel() for parameter in run.reducer.parameters),
        microbatches=run.batch_schedule.largest // (run.config.training.micro_batch_size * grid.dp),
        message_shape=run.runtime.message_shape,
        live_bytes=live.peaks(),
        communicated=watcher.communicated(),
    )


class _RecordingLog(CollectiveLog):
    """A log that remembers every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def begin(self, op: str, group: str, ranks: tuple[int, ...], channel: str | None = None) -> Call:
        """See `CollectiveLog`."""
        self.calls.append(super().begin(op, group, ranks, channel))
        return self.calls[-1]


class _Watcher(TorchDispatchMode):
    """Notes what collectives are given, and answers where the host asks for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.log = _RecordingLog()
        self._given: list[tuple[tuple[int, ...], torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Perform an operator."""
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].dtype.is_floating_point else 1
        if func.namespace == "c10d":
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            largest = max(tensors, key=torch.Tensor.numel)
            self._given.append((tuple(largest.shape), largest.dtype))
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from importing its compiler at the first operator."""
        return False

    def communicated(self) -> tuple[Communicated, ...]:
        """Each call with what it was given: calls are begun in the order of their operators, of a batch too."""
        return tuple(Communicated(call, *given) for call, given in zip(self.log.calls, self._given, strict=True))


@contextmanager
def _fake_tensors() -> Iterator[None]:
    # Imported where it is needed: it brings sympy, which takes a second that no other start should pay.
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        yield


@contextmanager
def _fake_world(rank: int, world_size: int) -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore  # importing it registers the backend

    if world_size == 1:
        yield
        return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _one_step(config: RunConfig, world_size: int, most: int | None) -> TrainingConfig:
    """Of the largest batch, with its first microbatches."""
    training = config.training
    samples = batch_schedule(training, config.model.seq_length).largest
    if most is not None:
        samples = min(samples, most * training.micro_batch_size * config.data_parallel_size(world_size))
    return dataclasses.replace(
        training, global_batch_size=samples, rampup_batch_size=None, step_batch_size_schedule=None
    )


def _without_files(data: DataConfig) -> DataConfig:
    """The same rules for documents, and tokens from nowhere."""
    return DataConfig(
        mock_data=True,
        num_workers=0,
        tokenizer_type=data.tokenizer,
        tokenizer_model=data.tokenizer_model,
        vocab_file=data.vocab_file,
        merge_file=data.merge_file,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=data.reset_attention_mask,
        eod_mask_loss=data.eod_mask_loss,
    )


def _mock_data(config: RunConfig) -> RunData:
    vocab_size = vocabulary(config)
    train = MockSamples(vocab_size, config.model.seq_length, config.training.seed, "train")
    rules = document_rules(config.data, eod=vocab_size - 1, vocab_size=vocab_size)
    datasets = Datasets(train=train, validation={}, test=None)
    return RunData(tasks=(), datasets=datasets, rules=rules, vocab_size=vocab_size)
