# SPDX-License-Identifier: Apache-2.0
import math

import torch

from megatron_core.checkpoint.cover import find_overlap
from megatron_core.checkpoint.megatron.parameters import EMBEDDING, HEAD, parameters
from megatron_core.model.gpt import ChunkPlan
from megatron_core.tensor_parallel.shard_spec import spec_parameters
from tests.small_model import make_factory, make_model, small

GROUPED = small(group_query_attention=True, num_query_groups=2, swiglu=True, qk_layernorm=True)
UNTIED = small(
    untie_embeddings_and_output_weights=True,
    position_embedding_type="rope",
    normalization="RMSNorm",
    add_bias_linear=False,
    add_qkv_bias=True,
)


def test_all_of_our_parameters_have_a_place_of_their_size() -> None:
    for config in (small(), GROUPED, UNTIED):
        ours = {
            p.spec.name: p.spec.shape for p in spec_parameters(make_model(make_factory(config), ChunkPlan(range(2))))
        }
        found = parameters(config, 40)
        parts = [part for parameter in found for part in parameter.parts]
        assert {part.name: part.shape for part in parts} == ours and len(parts) == len(ours)
        for parameter in found:
            rectangles = [r for part in parameter.parts for r in part.rectangles(parameter.width)]
            padding = 3 * 32 if parameter.name in (EMBEDDING, HEAD) else 0
            assert sum(r.volume for r in rectangles) == math.prod(parameter.shape) - padding, parameter.name
            assert find_overlap(rectangles) is None


def test_shards_are_the_whole_and_halves_are_cut_apart() -> None:
    for parameter in parameters(GROUPED, 40):
        count = torch.zeros(parameter.shape)
        for rank in range(2):
            assert parameter.divides_by(2)
            for rectangle in parameter.shard(2, rank):
                count[rectangle.slices((0,) * len(parameter.shape))] += 1
        assert (count == (2 if parameter.whole else 1)).all()
    (fc1,) = [p for p in parameters(GROUPED, 40) if p.name == "decoder.layers.1.mlp.linear_fc1.weight"]
    f = GROUPED.ffn_size
    assert [(r.start[0], r.stop[0]) for r in fc1.shard(2, 1)] == [(f // 2, f), (f + f // 2, 2 * f)]


def test_queries_come_before_key_and_value_of_their_group() -> None:
    (qkv,) = [p for p in parameters(GROUPED, 40) if p.name.endswith("0.self_attention.linear_qkv.weight")]
    q, kv = qkv.parts
    assert qkv.shape == (2 * 4 * 8, 32)
    assert [(r.start[0], r.stop[0]) for r in q.rectangles((32,))] == [(0, 16), (32, 48)]
    assert [(r.start[0], r.stop[0]) for r in kv.rectangles((32,))] == [(16, 32), (48, 64)]


def test_what_does_not_divide() -> None:
    by_name = {parameter.name: parameter for parameter in parameters(UNTIED, 40)}
    assert not by_name[EMBEDDING].divides_by(3) and by_name["decoder.final_layernorm.weight"].divides_by(3)
    assert not by_name["decoder.layers.0.self_attention.linear_proj.weight"].divides_by(64)
