# SPDX-License-Identifier: Apache-2.0
import pytest

TP2 = {"tensor_model_parallel_size": 2}
TP4 = {"tensor_model_parallel_size": 4}
PP4 = {"pipeline_model_parallel_size": 4}
FIRST, LAST = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"


@pytest.mark.parametrize(
    ("world", "values", "part"),
    [
        (6, {**TP2, "pipeline_model_parallel_size": 2}, "6 ranks do not divide by tensor 2 x pipeline 2 = 4"),
        (2, {"context_parallel_size": 2}, "--context-parallel-size 2: attention over a cut sequence is not built"),
        (3, {"tensor_model_parallel_size": 3, "ffn_hidden_size": 96}, "--num-attention-heads 8 is not a multiple of"),
        (2, {**TP2, "ffn_hidden_size": 101}, "the MLP's width 101 is not a multiple of --tensor-model-parallel-size 2"),
        (2, {**TP2, "sequence_parallel": True, "seq_length": 31}, "--seq-length 31 is not a multiple of"),
        (4, {**PP4, "num_layers": 3}, "leaves 3 for 4 ranks x 1 chunks: it must be at least 4"),
        (
            4,
            {**PP4, "num_layers_per_virtual_pipeline_stage": 1, "num_virtual_stages_per_pipeline_rank": 2},
            "--num-virtual-stages-per-pipeline-rank exclude each other",
        ),
        (4, {**PP4, "num_layers_per_virtual_pipeline_stage": 3}, "--num-layers 8 over 4 stages does not divide"),
        (4, {**PP4, "num_layers": 10, "num_layers_per_virtual_pipeline_stage": 1}, "does not divide into chunks"),
        (
            4,
            {**PP4, "num_virtual_stages_per_pipeline_rank": 2, "pipeline_schedule": "zero-bubble"},
            "2 virtual stages a rank need --pipeline-schedule interleaved (or auto), not zero-bubble",
        ),
        (4, {**PP4, "num_virtual_stages_per_pipeline_rank": 3}, "for 4 ranks x 3 chunks: it must be at least 12"),
        (1, {FIRST: 4}, "need --pipeline-model-parallel-size of at least 2"),
        (4, {**PP4, FIRST: 4, LAST: 3}, "leaves 1 for 2 ranks x 1 chunks: it must be at least 2"),
        (2, {"pipeline_model_parallel_size": 2, FIRST: 4, LAST: 3}, "for 0 ranks x 1 chunks: it must be exactly 0"),
        (
            2,
            {"pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 2, FIRST: 3},
            "num-layers 3 does not fill the rank's 2 chunks alike",
        ),
        (1, {"grad_reduce_in_bf16": True}, "--grad-reduce-in-bf16 needs --bf16"),
    ],
)  # fmt: skip
def test_each_rule(complaints, world, values, part):
    (message,) = complaints(world, **values)
    assert part in message


@pytest.mark.parametrize(("groups", "tp", "fine"), [(2, 4, True), (4, 2, True), (4, 4, True), (6, 4, False)])
def test_query_groups_and_tensor_parallelism_divide_one_another(complaints, groups, tp, fine):
    values = {"num_attention_heads": 24, "hidden_size": 96, "group_query_attention": True, "num_query_groups": groups}
    found = complaints(tp, tensor_model_parallel_size=tp, **values)
    message = (
        f"of --num-query-groups {groups} and --tensor-model-parallel-size {tp} one must be a multiple of the other"
    )
    assert found == ([] if fine else [message])


@pytest.mark.parametrize(
    ("world", "values"),
    [
        (8, {**TP4, "sequence_parallel": True, "pipeline_model_parallel_size": 2}),
        (4, {**PP4, "num_layers": 7}),  # uneven stages are placed by count
        (4, {**PP4, "num_layers": 2, "pipeline_split": "cost"}),  # stages of embedding and head alone
        (4, {**PP4, "num_layers": 3, "account_for_loss_in_pipeline_split": True}),
        (4, {**PP4, "num_virtual_stages_per_pipeline_rank": 2}),
        (4, {**PP4, FIRST: 1, LAST: 3}),
        (2, {"pipeline_model_parallel_size": 2, FIRST: 5, LAST: 3}),
        (1, {"sequence_parallel": True, "seq_length": 31}),  # off by itself at tp 1
        (1, {"pipeline_schedule": "interleaved"}),
    ],
)
def test_what_is_fine(complaints, world, values):
    assert complaints(world, **values) == []
