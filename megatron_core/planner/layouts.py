# SPDX-License-Identifier: Apache-2.0
"""All layouts of a model on so many devices, and each as the flags that ask for it.

Left out is what never wins: GPipe, which is as slow as 1F1B and keeps more; with several replicas, masters and moments
that are not shared out, reductions and gatherings that nothing hides.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from megatron_core.config.fields import all_fields
from megatron_core.config.model import ModelConfig
from megatron_core.config.parallel import ParallelConfig, ScheduleName
from megatron_core.config.run import RunConfig
from megatron_core.config.training import TrainingConfig
from megatron_core.errors import ConfigError
from megatron_core.planner.stage_layers import stage_layers

LARGEST_MICRO_BATCH = 64
LARGEST_CHUNKS = 8
"""Virtual stages of a rank; more have shorter bubbles and as many more transfers."""
MOST_NODES_OF_A_TENSOR_GROUP = 2

Granularity = Literal["full", "selective"] | None
Split = Literal["count", "cost"]


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to cut a step over devices."""

    tp: int
    pp: int
    dp: int
    micro_batch: int
    schedule: ScheduleName
    chunks: int
    """Virtual stages of a rank."""
    split: Split
    """How layers are shared out over stages."""
    sequence_parallel: bool
    recompute: Granularity

    @property
    def name(self) -> str:
        """For tables."""
        words = [f"tp {self.tp} x pp {self.pp} x dp {self.dp}", f"b {self.micro_batch}"]
        if self.pp > 1:
            words.append(f"interleaved {self.chunks}" if self.chunks > 1 else self.schedule)
        words += ["split by cost"] if self.split == "cost" else []
        words += ["sequence parallel"] if self.sequence_parallel else []
        return ", ".join([*words, f"recompute {self.recompute or 'nothing'}"])

    def of(self, base: RunConfig) -> RunConfig:
        """`base` in this layout; a batch that ramps up does so in steps that the layout can take."""
        sharded = self.dp > 1
        parallel = dataclasses.replace(
            base.parallel,
            tensor_model_parallel_size=self.tp,
            pipeline_model_parallel_size=self.pp,
            pipeline_schedule="zero-bubble" if self.schedule == "zero-bubble" else "auto",
            num_virtual_stages_per_pipeline_rank=self.chunks if self.chunks > 1 else None,
            pipeline_split=self.split,
            sequence_parallel=self.sequence_parallel,
            recompute_granularity=self.recompute,
            use_distributed_optimizer=sharded and base.optim.optimizer == "adam",
            overlap_param_gather=sharded and base.optim.optimizer == "adam",
            overlap_grad_reduce=sharded,
            **_RESET,  # type: ignore[arg-type]
        )
        training = dataclasses.replace(
            base.training,
            micro_batch_size=self.micro_batch,
            rampup_batch_size=_ramp_up(base.training, self.micro_batch * self.dp),
        )
        return dataclasses.replace(base, parallel=parallel, training=training)


_RESET: dict[str, object] = {
    name: getattr(ParallelConfig(), name)
    for name in (
        "num_layers_per_virtual_pipeline_stage",
        "decoder_first_pipeline_num_layers",
        "decoder_last_pipeline_num_layers",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "recompute_method",
        "recompute_num_layers",
        "recompute_modules",
    )
}
"""Settings that say the same as a layout's in another way, or belong to one that is given up."""
_DECIDED = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "pipeline_schedule",
    "num_virtual_stages_per_pipeline_rank",
    "pipeline_split",
    "sequence_parallel",
    "recompute_granularity",
    "use_distributed_optimizer",
    "overlap_grad_reduce",
    "overlap_param_gather",
    *_RESET,
    "micro_batch_size",
    "rampup_batch_size",
)
"""Fields that a layout decides, in the order in which flags are printed."""


def flags(config: RunConfig, base: RunConfig) -> tuple[str, ...]:
    """Flags that, behind those of `base` and also without them, give the layout of `config`."""
    fields = {field.name: field for field in all_fields()}
    found: list[str] = []
    for field in (fields[name] for name in _DECIDED):
        value, given = (getattr(getattr(one, field.section), field.name) for one in (config, base))
        if value == given == field.default:
            continue
        if isinstance(value, bool):
            found.append(f"--{field.flag}" if value else f"--no-{field.flag}")
        else:
            words = map(str, value) if isinstance(value, tuple) else [str(value).lower()]
            found.append(" ".join([f"--{field.flag}", *words]))
    return tuple(found)


def layouts(config: RunConfig, devices: int, devices_per_node: int) -> Iterator[Layout]:
    """Every layout of the run's global batch on so many devices; those that differ in the microbatch alone follow each
    other, smallest first. Raises ConfigError without a global batch.
    """
    model, batch = config.model, config.training.global_batch_size
    if batch is None:
        raise ConfigError("layouts differ in micro-batch-size x dp: set --global-batch-size, which they share")
    pipelines = {pp: tuple(_pipelines(config, pp)) for pp in _divisors(devices, most=model.num_layers)}
    for tp in tensor_sizes(model, devices, devices_per_node):
        for pp in _divisors(devices // tp, most=model.num_layers):
            dp = devices // tp // pp
            if batch % dp:
                continue
            for schedule, chunks, split in pipelines[pp]:
                for sequence_parallel in (True, False) if tp > 1 and model.seq_length % tp == 0 else (False,):
                    for recompute in _GRANULARITIES:
                        for b in _divisors(batch // dp, most=LARGEST_MICRO_BATCH):
                            yield Layout(tp, pp, dp, b, schedule, chunks, split, sequence_parallel, recompute)


_GRANULARITIES: Sequence[Granularity] = (None, "selective", "full")


def tensor_sizes(model: ModelConfig, devices: int, devices_per_node: int) -> list[int]:
    """Sizes tp that cut the model evenly, within a node or over whole ones."""
    heads, groups, ffn = model.num_attention_heads, model.query_groups, model.ffn_size
    return [
        tp
        for tp in _divisors(devices, most=MOST_NODES_OF_A_TENSOR_GROUP * devices_per_node)
        if heads % tp == 0 and ffn % tp == 0 and (groups % tp == 0 or tp % groups == 0)
        if devices_per_node % tp == 0 or tp % devices_per_node == 0
    ]


def _pipelines(config: RunConfig, pp: int) -> Iterator[tuple[ScheduleName, int, Split]]:
    """Schedules, virtual stages and splits of a pipeline, no two of which do the same."""
    if pp == 1:
        yield "1f1b", 1, "count"
        return
    layers = config.model.num_layers
    for chunks in range(1, min(LARGEST_CHUNKS, layers // pp) + 1):
        if chunks > 1 and layers % pp == 0 and layers % (pp * chunks):
            continue  # one stage would have a chunk that is larger than those of the others
        by_count, by_cost = _shares(config, pp, chunks, "count"), _shares(config, pp, chunks, "cost")
        splits: Sequence[Split] = ("count",) if by_cost in (None, by_count) else ("count", "cost")
        for split in splits:
            if chunks == 1:
                yield "1f1b", 1, split
                yield "zero-bubble", 1, split
            else:
                yield "interleaved", chunks, split


def _shares(config: RunConfig, pp: int, chunks: int, split: Split) -> tuple[range, ...] | None:
    """Layers of each virtual stage; None where they do not suffice."""
    parallel = ParallelConfig(
        pipeline_model_parallel_size=pp, num_virtual_stages_per_pipeline_rank=chunks, pipeline_split=split
    )
    try:
        return stage_layers(config.model, parallel)
    except ConfigError:
        return None


def _divisors(number: int, most: int | None = None) -> list[int]:
    return [size for size in range(1, min(number, most or number) + 1) if number % size == 0]


def _ramp_up(training: TrainingConfig, unit: int) -> tuple[int, int, int] | None:
    """The ramp that was asked for, its start and increment rounded up to what `unit` samples divide."""
    batch = training.global_batch_size
    if training.rampup_batch_size is None or batch is None:
        return None
    start, increment, samples = training.rampup_batch_size
    start = min(-(-start // unit) * unit, batch)
    steps = range(-(-increment // unit) * unit, batch - start + 1, unit)
    fitting = next((size for size in steps if (batch - start) % size == 0), None)
    return None if fitting is None else (start, fitting, samples)
