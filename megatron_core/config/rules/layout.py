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
    given = [count for count in (first, last) if count is not None]
    if given and p == 1:
        yield "--decoder-first/last-pipeline-num-layers need --pipeline-model-parallel-size of at least 2"
        return
    for count in given:
        if count % v or (v > 1 and count == 0):
            yield f"--decoder-first/last-pipeline-num-layers {count} does not fill the rank's {v} chunks alike"
    # A chunk at either end may go without layers where the embedding or the head counts as its work.
    by_cost = parallel.pipeline_split == "cost"
    empty = (first is None and (by_cost or parallel.account_for_embedding_in_pipeline_split)) + (
        last is None and (by_cost or parallel.account_for_loss_in_pipeline_split)
    )
    ranks, rest = p - len(given), layers - sum(given)
    need = max(ranks * v - empty, 0)
    if rest < need or (ranks == 0 and rest != 0):
        yield (
            f"--num-layers {layers}, {layers - rest} of them fixed for the first and last rank, leaves {rest} for "
            f"{ranks} ranks x {v} chunks: it must be {'exactly 0' if ranks == 0 else f'at least {need}'}; use fewer "
            "stages or other --decoder-first/last-pipeline-num-layers"
        )


def _gradients(config: RunConfig, world: int) -> Iterator[str]:
    if config.parallel.grad_reduce_in_bf16 and not config.optim.bf16:
        yield "--grad-reduce-in-bf16 needs --bf16"
    if config.parallel.overlap_param_gather and not config.parallel.use_distributed_optimizer:
        yield "--overlap-param-gather has nothing to gather without --use-distributed-optimizer"


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
