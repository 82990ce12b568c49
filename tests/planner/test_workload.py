# SPDX-License-Identifier: Apache-2.0
from megatron_core.config.model import ModelConfig
from megatron_core.config.optim import OptimConfig
from megatron_core.config.parallel import ParallelConfig
from megatron_core.config.run import RunConfig
from megatron_core.config.training import TrainingConfig
from megatron_core.planner.workload import Recompute, Workload

RUN = RunConfig(
    model=ModelConfig(
        num_layers=8,
        hidden_size=64,
        num_attention_heads=4,
        seq_length=32,
        max_position_embeddings=32,
        vocab_size=1001,
        make_vocab_size_divisible_by=128,
    ),
    parallel=ParallelConfig(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        num_layers_per_virtual_pipeline_stage=2,
        sequence_parallel=True,
        recompute_granularity="full",
        recompute_method="block",
        recompute_num_layers=1,
        use_distributed_optimizer=True,
    ),
    optim=OptimConfig(bf16=True, optimizer_cpu_offload=True),
    training=TrainingConfig(micro_batch_size=2, global_batch_size=24, train_iters=1),
)


def test_a_runs_workload_has_its_sizes() -> None:
    work = Workload.of(RUN.resolve(12), 12)
    assert (work.tp, work.pp, work.dp, work.chunks, work.microbatches) == (2, 2, 3, 2, 4)
    assert (work.devices, work.global_batch, work.itemsize, work.schedule) == (12, 24, 2, "interleaved")
    assert [len(layers) for layers in work.layers] == [2, 2, 2, 2]
    assert list(work.stage_chunks(1)) == [1, 3]
    assert work.distributed_optimizer and work.optimizer_offload and not work.offload_gradients
    assert work.vocabulary_rows == 512


def test_layers_that_are_recomputed_whole() -> None:
    assert Recompute(granularity="full").full_layers(6) == 6
    assert Recompute(granularity="full", method="block", num_layers=2).full_layers(6) == 2
    assert Recompute(granularity="full", method="block", num_layers=9).full_layers(6) == 6
    assert Recompute(granularity="selective").full_layers(6) == 0
