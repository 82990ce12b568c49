# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.config.fields import all_fields, replace_fields
from megatron_core.config.run import RunConfig
from megatron_core.config.yaml_file import dump_yaml, read_yaml
from megatron_core.errors import ConfigError

FIELDS = all_fields()
INTEGERS = st.integers(-(2**70), 2**70)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
# Surrogates cannot be written as UTF-8.
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8) | st.sampled_from(
    ["null", "6e-5", "no", "1_0", "~", "\x85", "a\u2028b"]
)


def values_of(kind):
    """Any value that a field of this type can hold."""
    scalar = {bool: st.booleans(), int: INTEGERS, float: FLOATS, str: TEXT}[kind.scalar]
    if kind.choices:
        scalar = st.sampled_from(kind.choices)
    if kind.length == "any":
        scalar = st.lists(scalar, max_size=3).map(tuple)
    elif kind.length is not None:
        scalar = st.tuples(*[scalar] * kind.length)
    return st.none() | scalar if kind.optional else scalar


@st.composite
def configs(draw):
    chosen = draw(st.lists(st.sampled_from(FIELDS), max_size=12, unique=True))
    return replace_fields(RunConfig(), {field: draw(values_of(field.type)) for field in chosen})


@given(configs())
@settings(deadline=None, max_examples=40)
def test_what_is_printed_reads_back_as_the_same_config(config):
    read = read_yaml(dump_yaml(config), "printed", FIELDS)
    assert read.problems == ()
    assert replace_fields(RunConfig(), read.values) == config


def problems(text):
    return read_yaml(text, "run.yaml", FIELDS).problems


def test_sections_and_keys():
    read = read_yaml("model: {num-layers: 12, swiglu: true}\noptim:\n  lr: 6e-5\ndata:\n", "run.yaml", FIELDS)
    assert {field.name: value for field, value in read.values.items()} == {"num_layers": 12, "swiglu": True, "lr": 6e-5}
    assert read_yaml("", "run.yaml", FIELDS).values == {}


def test_all_faults_are_named_with_file_and_key():
    text = """
model: {num_layer: 12, hidden_size: "64", lr: 1, num_layers: 2, num_layers: 3}
modle: {}
seq_length: 5
optim: 3
"""
    assert problems(text) == (
        "run.yaml: model.num_layers is given twice",
        "run.yaml: unknown key model.num_layer; did you mean num_layers?",
        "run.yaml: model.hidden_size is '64', not a whole number",
        "run.yaml: model.lr belongs under `optim:`",
        "run.yaml: unknown section modle; did you mean model?",
        "run.yaml: seq_length belongs under `model:`",
        "run.yaml: optim must map fields to values, not be 3",
    )
    assert problems("1: {}\n")[0].startswith("run.yaml: unknown section 1; sections are checkpoint, data,")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", r"run.yaml is not valid YAML: .*line 1"),
        ("a: 2001-13-45", "run.yaml is not valid YAML: month must be in"),
        ("- 1", r"run.yaml must map sections \(checkpoint, data,"),
        (
            "a: !!python/object/apply:os.system ['true']",
            "run.yaml is not valid YAML: could not determine a constructor",
        ),
    ],
)
def test_files_that_are_no_configuration(text, message):
    with pytest.raises(ConfigError, match=message):
        read_yaml(text, "run.yaml", FIELDS)
