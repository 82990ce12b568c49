# SPDX-License-Identifier: Apache-2.0
import pytest

FULL = {"recompute_granularity": "full"}
SELECTIVE = {"recompute_granularity": "selective"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"recompute_method": "block"}, "--recompute-method block needs --recompute-granularity full, not none"),
        (
            {**SELECTIVE, "recompute_num_layers": 1},
            "--recompute-num-layers 1 needs --recompute-granularity full, not selective",
        ),
        (
            {**FULL, "recompute_modules": ("mlp", "layernorm")},
            "--recompute-modules mlp layernorm needs --recompute-granularity selective, not full",
        ),
        ({**FULL, "recompute_num_layers": 0}, "--recompute-num-layers is 0; it must be >= 1"),
        (
            {**SELECTIVE, "recompute_modules": ()},
            "--recompute-modules names none: choose among core_attn, mlp, layernorm",
        ),
        (
            {**SELECTIVE, "recompute_modules": ("core_attn", "moe_act")},
            "--recompute-modules moe_act: mixture-of-experts layers are not part of this framework: leave it out",
        ),
        (
            {**SELECTIVE, "recompute_modules": ("mla_up_proj",)},
            "--recompute-modules mla_up_proj: latent attention is not part of this framework: leave it out",
        ),
        (
            {**SELECTIVE, "recompute_modules": ("mlps",)},
            "--recompute-modules mlps is unknown: choose among core_attn, mlp, layernorm",
        ),
    ],
)
def test_each_rule(complaints, values, message):
    assert complaints(**values) == [message]


@pytest.mark.parametrize(
    "values",
    [
        FULL,
        {**FULL, "recompute_method": "block", "recompute_num_layers": 100},
        SELECTIVE,
        {**SELECTIVE, "recompute_modules": ("layernorm", "mlp", "core_attn")},
    ],
)
def test_what_is_fine(complaints, values):
    assert complaints(**values) == []


def test_what_is_unset_of_full_recomputation_is_written_out(config_with):
    """So that the resolved config of a run, which is a config too, is accepted again."""
    resolved = config_with(**FULL).resolve(1).parallel
    assert (resolved.recompute_method, resolved.recompute_num_layers) == ("uniform", 1)
    plain = config_with().resolve(1).parallel
    assert (plain.recompute_method, plain.recompute_num_layers) == (None, None)
