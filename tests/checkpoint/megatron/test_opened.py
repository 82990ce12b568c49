# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.checkpoint.megatron.opened import require_names
from megatron_core.checkpoint.megatron.parameters import HEAD, parameters
from megatron_core.errors import CheckpointError
from tests.small_model import small


def test_names_are_those_wanted_but_for_the_copy_of_a_tied_head() -> None:
    wanted = parameters(small(), 40)
    names = [parameter.name for parameter in wanted]
    require_names(wanted, names, "here")
    require_names(wanted, [*names, HEAD], "here")
    with pytest.raises(CheckpointError) as caught:
        require_names(wanted, [*names[1:], "decoder.layers.7.x"], "here")
    assert str(caught.value).splitlines()[1:] == [
        "  embedding.word_embeddings.weight is missing",
        "  decoder.layers.7.x is not in that model",
    ]
    with pytest.raises(CheckpointError, match="and 8 more"):
        require_names(wanted, [], "here")


def test_an_untied_head_is_not_forgotten_cnv_06() -> None:
    wanted = parameters(small(untie_embeddings_and_output_weights=True), 40)
    names = [parameter.name for parameter in wanted]
    with pytest.raises(CheckpointError, match=r"output_layer\.weight is missing"):
        require_names(wanted, names[:-1], "here")
