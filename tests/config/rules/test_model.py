# SPDX-License-Identifier: Apache-2.0
import pytest

ROPE = {"position_embedding_type": "rope"}


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"num_attention_heads": 7}, "--hidden-size 64 is not a multiple of --num-attention-heads 7: change one"),
        ({"group_query_attention": True, "num_query_groups": 3}, "8 is not a multiple of --num-query-groups 3"),
        ({"num_query_groups": 4}, "--num-query-groups 4 is read only with --group-query-attention"),
        ({"max_position_embeddings": 0}, "is required with learned positions: at least --seq-length 32"),
        ({"max_position_embeddings": 16}, "--max-position-embeddings 16 is less than --seq-length 32: raise it to 32"),
        ({"use_rope_scaling": True}, "scaling of rotary positions needs --position-embedding-type rope"),
        ({**ROPE, "use_rope_scaling": True, "rotary_seq_len_interpolation_factor": 2.0}, "exclude each other"),
        ({**ROPE, "rotary_percent": 0.4}, "--rotary-percent 0.4 of a head's 8 dimensions is 3, which must be even"),
        ({**ROPE, "kv_channels": 1}, "1 dimensions is 1, which must be even and at least 2"),
        ({"swiglu": True, "squared_relu": True}, "--swiglu and --squared-relu exclude each other"),
        ({"swiglu": True, "hidden_size": 16}, "a multiple of 64, which is 0: set --ffn-hidden-size"),
        ({"padded_vocab_size": 99}, "--padded-vocab-size 99 is less than --vocab-size 100"),
    ],
)
def test_each_rule(complaints, values, part):
    (message,) = complaints(**values)
    assert part in message


def test_padded_vocabulary_is_cut_by_tensor_parallelism(complaints):
    (message,) = complaints(2, padded_vocab_size=101, tensor_model_parallel_size=2)
    assert message == "--padded-vocab-size 101 is not a multiple of --tensor-model-parallel-size 2"


@pytest.mark.parametrize(
    "values",
    [
        {"num_attention_heads": 7, "kv_channels": 9},
        {"group_query_attention": True, "num_query_groups": 4},
        {"num_query_groups": 8},
        {**ROPE, "max_position_embeddings": 0},
        {**ROPE, "rotary_percent": 0.5, "use_rope_scaling": True},
        {"position_embedding_type": "none", "max_position_embeddings": 0},
    ],
)
def test_what_is_fine(complaints, values):
    assert complaints(**values) == []
