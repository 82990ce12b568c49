# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.checkpoint.megatron.parameters import EMBEDDING, HEAD, parameters
from megatron_core.checkpoint.megatron.target import Target
from megatron_core.errors import ConfigError
from tests.small_model import small

CONFIG = small(num_layers=8, make_vocab_size_divisible_by=8)
WANTED = parameters(CONFIG, 48)


def target(tp: int = 1, pp: int = 1, per: int | None = None, *, transformer_engine: bool = True) -> Target:
    return Target(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        num_layers_per_virtual_pipeline_stage=per,
        transformer_engine=transformer_engine,
    )


def test_virtual_stages_follow_one_another_over_the_ranks() -> None:
    layout = target(pp=2, per=2)
    layout.check(CONFIG, WANTED)
    assert (
        layout.num_chunks(8) == 2
        and layout.padded_vocab_size(CONFIG) == 40
        and target(2).padded_vocab_size(CONFIG) == 48
    )
    layers = [
        sorted({parameter.name.split(".")[2] for parameter in chunk.values() if ".layers." in parameter.name})
        for rank in range(2)
        for chunk in layout.chunks_of(CONFIG, WANTED, rank)
    ]
    assert layers == [["0", "1"], ["4", "5"], ["2", "3"], ["6", "7"]]
    first, _ = layout.chunks_of(CONFIG, WANTED, 0)
    _, last = layout.chunks_of(CONFIG, WANTED, 1)
    assert EMBEDDING in first and HEAD not in first and last[HEAD].name == EMBEDDING and EMBEDDING not in last
    assert last["decoder.layers.1.mlp.linear_fc2.weight"].name == "decoder.layers.7.mlp.linear_fc2.weight"
    assert "decoder.final_layernorm.weight" in last and "decoder.final_layernorm.weight" not in first


def test_one_stage_has_no_copy_of_a_tied_head_and_an_untied_one_once() -> None:
    (chunk,) = target().chunks_of(CONFIG, WANTED, 0)
    assert HEAD not in chunk and len(chunk) == len(WANTED)
    untied = small(untie_embeddings_and_output_weights=True)
    wanted = parameters(untied, 40)
    (first,), (last,) = (target(pp=2).chunks_of(untied, wanted, rank) for rank in range(2))
    assert HEAD not in first and last[HEAD].name == HEAD


def test_names_of_both_implementations() -> None:
    (engine,) = target(pp=4).chunks_of(CONFIG, WANTED, 1)
    (local,) = target(pp=4, transformer_engine=False).chunks_of(CONFIG, WANTED, 1)
    norm = "decoder.layers.2.input_layernorm.weight"
    assert engine["decoder.layers.0.self_attention.linear_qkv.layer_norm_weight"].name == norm
    assert local["decoder.layers.0.input_layernorm.weight"].name == norm
    assert "decoder.layers.1.mlp.linear_fc1.layer_norm_bias" in engine
    assert "decoder.layers.1.mlp.linear_fc1._extra_state" in target(pp=4).empty_states(engine)
    assert target(pp=4, transformer_engine=False).empty_states(local) == []


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (target(pp=3), "8 layers do not make 3 pipeline stages of chunks of 2 each"),
        (target(pp=2, per=3), "8 layers do not make 2 pipeline stages of chunks of 3 each"),
        (target(per=2), "virtual pipeline stages need --target-pipeline-parallel-size 2"),
        (target(tp=3), "4 heads in 4 groups do not divide by 3"),
        (target(tp=3), r"linear_proj\.weight \(32, 32\) cannot be cut for 3"),
        (target(tp=0), "at least 1"),
    ],
)
def test_layouts_that_megatron_has_not(layout: Target, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        layout.check(CONFIG, WANTED)
