# SPDX-License-Identifier: Apache-2.0
"""CKP-06: every missing, extra and mis-shaped tensor is named, of the optimizer too."""

from pathlib import Path

import pytest

from megatron_core.checkpoint.match import differences, require_match
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint

ALL = ["model", "master", "adam_v", "mask"]
SHAPES = {name: tuple(values.shape) for name, values in small_checkpoint.tensors().items()}


def test_equal(tmp_path: Path) -> None:
    require_match(small_checkpoint.save(tmp_path), SHAPES, ALL)


def test_all_differences_are_listed(tmp_path: Path) -> None:
    expected = SHAPES | {"model/w": (6, 11), "model/bias": (4,), "adam_v/scalar": (1,)}
    del expected["master/w"]
    with pytest.raises(CheckpointError) as caught:
        require_match(small_checkpoint.save(tmp_path), expected, ALL)
    assert str(caught.value).splitlines() == [
        "the checkpoint of step 3 does not fit this run: 4 tensors differ:",
        "  adam_v/scalar: shape () in the checkpoint, (1,) in the run",
        "  master/w: in the checkpoint, with shape (6, 10), but not in the run",
        "  model/bias: missing in the checkpoint; the run has shape (4,)",
        "  model/w: shape (6, 10) in the checkpoint, (6, 11) in the run",
    ]


def test_only_what_will_be_loaded_counts(tmp_path: Path) -> None:
    weights = {name: shape for name, shape in SHAPES.items() if name.startswith("model/")}
    manifest = small_checkpoint.save(tmp_path)
    require_match(manifest, weights, ["model"])
    assert len(differences(manifest, weights, ALL)) == 3
