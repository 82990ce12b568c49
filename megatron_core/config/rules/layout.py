# SPDX-License-Identifier: Apache-2.0
"""Rules about the layout: what tensor parallelism cuts must divide, and every stage must hold layers."""

from collections.abc import Iterator

from megatron_core.config.rules.rule import Rule
from megatron_core.config.run import RunConfig


def _world(config: RunConfig, world: int) -> Iterator[str]:
    parallel = config.parallel
    tp, pp = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
    if parallel.context_parallel_size > 1:
        yield (
            f"--context-parallel-size {parallel.context_parallel_size}: attention over a cut sequence is not built; "
            "set 1, and use --sequence-parallel with a larger --tensor-model-parallel-size for long sequences"
        )
    elif world % (tp * pp):
        yield (
            f"{world} ranks do not divide by tensor {tp} x pipeline {pp} = {tp * pp}: start a multiple of {tp * pp} "
            "ranks (--world-size to print), or make the sizes smaller"
        )


def _tensor_cuts(config: RunConfig, world: int) -> Iterator[str]:
    model, tp = config.model, config.parallel.tensor_model_parallel_size
    size = f"--tensor-model-parallel-size {tp}"
    if model.num_attention_heads % tp:
        yield f"--num-attention-heads {model.num_attention_heads} is not a multiple of {size}"
    groups = model.query_groups
    if model.group_query_attention and groups % tp and tp % groups:
        yield f"of --num-query-groups {groups} and {size} one must be a multiple of the other"
    if model.ffn_size % tp:
        yield f"the MLP's width {model.ffn_size} is not a multiple of {size}: set --ffn-hidden-size"
    if config.parallel.sequence_parallel and model.seq_length % tp:
        yield f"--seq-length {model.seq_length} is not a multiple of {size}, which --sequence-parallel needs"


def _virtual_stages(config: RunConfig, world: int) -> Iterator[str]:
    parallel, layers = config.parallel, config.model.num_layers
    p, per_chunk = parallel.pipeline_model_parallel_size, parallel.num_layers_per_virtual_pipeline_stage
    if per_chunk is not None and parallel.num_virtual_stages_per_pipeline_rank is not None:
        yield (
            "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank exclude each other: "
            "choose one"
        )
    elif per_chunk is not None and (layers % p or layers // p % per_chunk):
        yield (
            f"--num-layers {layers} over {p} stages does not divide into chunks of "
            f"--num-layers-per-virtual-pipeline-stage {per_chunk}: give --num-virtual-stages-per-pipeline-rank instead"
        )
    else:
        v, schedule = parallel.virtual_stages(layers), parallel.schedule(layers)
        if v > 1 and schedule != "interleaved":
            yield f"{v} virtual stages a rank need --pipeline-schedule interleaved (or auto), not {schedule}"
        yield from _layers(config, p, v)


def _layers(config: RunConfig, p: int, v: int) -> Iterator[str]:
    parallel, layers = config.parallel, config.model.num_layers
    first, last = parallel.decoder_first_pipeline_num_layers, parallel.decoder_last_pipeline_num_layers
    counted = parallel.account_for_embedding_in_pipeline_split + parallel.account_for_loss_in_pipeline_split
    if first is None and last is None:
        if parallel.pipeline_split == "count" and layers + counted < p * v:
            yield f"--num-layers {layers} cannot fill {p} stages x {v} chunks = {p * v}: make those smaller"
        return
    given = [count for count in (first, last) if count is not None]
    if p == 1:
        yield "--decoder-first/last-pipeline-num-layers need --pipeline-model-parallel-size of at least 2"
        return
    if counted or parallel.pipeline_split == "cost":
        yield (
            "--decoder-first/last-pipeline-num-layers exclude --pipeline-split cost and "
            "--account-for-embedding/loss-in-pipeline-split: choose one way to shape the stages"
        )
    if min(given) < v:
        yield f"--decoder-first/last-pipeline-num-layers must give each of the rank's {v} chunks a layer"
    others, rest = p - len(given), layers - sum(given)
    if rest < others * v or (others == 0 and rest):
        yield (
            f"--num-layers {layers} less {sum(given)} on the first and last stage leaves {rest} for {others} other "
            f"stages of {v} chunks: " + ("they must add up" if others == 0 else f"it must be at least {others * v}")
        )


def _gradients(config: RunConfig, world: int) -> Iterator[str]:
    if config.parallel.grad_reduce_in_bf16 and not config.optim.bf16:
        yield "--grad-reduce-in-bf16 needs --bf16"


RULES = (
    Rule(_world, "tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size"),
    Rule(
        _tensor_cuts,
        "hidden_size num_attention_heads num_query_groups ffn_hidden_size seq_length tensor_model_parallel_size",
    ),
    Rule(
        _virtual_stages,
        "num_layers pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage "
        "num_virtual_stages_per_pipeline_rank decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers",
    ),
    Rule(_gradients),
)
