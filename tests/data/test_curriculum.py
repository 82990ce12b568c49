# SPDX-License-Identifier: Apache-2.0
"""Segments of the flag, inline and from a file, and what is refused."""

from pathlib import Path

import pytest

from megatron_core.data.blend import Blend
from megatron_core.data.curriculum import parse_curriculum
from megatron_core.errors import DataError

BASE = Blend([1, 1])


def test_token_counts_become_samples_and_the_base_comes_first(tmp_path: Path) -> None:
    text = "- {tokens: 100, weights: [1, 3]}\n- {tokens: 201, weights: [1, 0]}\n"
    (tmp_path / "blend.yaml").write_text(text)
    for given in (text, str(tmp_path / "blend.yaml")):
        curriculum = parse_curriculum(given, ("p", "q"), BASE, seq_length=10)
        assert curriculum.starts == (0, 10, 21)
        assert [float(blend.weights[0]) for blend in curriculum.blends] == [0.5, 0.25, 1]
    assert parse_curriculum("[{tokens: 0, weights: [1, 2]}]", ("p", "q"), BASE, 10).starts == (0,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{tokens: 0, weights: [1]}]", r"1 weights at 0 tokens for 2 data sets \(p, q\)"),
        ("[{tokens: -1, weights: [1, 1]}]", "give a YAML list"),
        ("[{token: 0, weights: [1, 1]}]", "give a YAML list"),
        ("[{tokens: 0, weights: [a, b]}]", "give a YAML list"),
        ("[]", "give a YAML list"),
        ("[{", "not YAML"),
        ("/nonexistent.yaml", "cannot read"),
        ("[{tokens: 90, weights: [1, 1]}, {tokens: 5, weights: [1, 1]}]", "go up"),
        ("[{tokens: 0, weights: [-1, 1]}]", "negative"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_curriculum(text, ("p", "q"), BASE, 10)
