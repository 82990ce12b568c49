# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from megatron_core.checkpoint.megatron.legacy_read import open_legacy
from megatron_core.checkpoint.megatron.verify_export import verify_export
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.errors import CheckpointError
from tests.checkpoint.megatron.stored import save_weights
from tests.checkpoint.megatron.trees import weights, write_legacy
from tests.small_model import small

CONFIG = small(make_vocab_size_divisible_by=8)


def test_what_reads_back_otherwise_is_refused(tmp_path: Path) -> None:
    ours = weights(CONFIG)
    step = save_weights(tmp_path / "run", ours, CONFIG)
    done: list[int] = []
    with StoredModel(step) as stored:
        verify_export(open_legacy(write_legacy(tmp_path / "same", ours, CONFIG, tp=2)), stored, done.append)
        assert sum(done) == sum(values.nbytes for values in ours.values())
        other = dict(ours)
        other["layers.1.mlp.down.bias"] = ours["layers.1.mlp.down.bias"] + 1e-6
        tree = write_legacy(tmp_path / "other", other, CONFIG)
        with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down\.bias does not read back as it was written"):
            verify_export(open_legacy(tree), stored, done.append)
        half = {name: values.half() for name, values in ours.items()}
        with pytest.raises(CheckpointError, match="does not read back"):
            verify_export(open_legacy(write_legacy(tmp_path / "half", half, CONFIG)), stored, done.append)
        eps = small(make_vocab_size_divisible_by=8, norm_epsilon=1e-3)
        with pytest.raises(CheckpointError, match="reads back as another model"):
            verify_export(open_legacy(write_legacy(tmp_path / "eps", ours, eps)), stored, done.append)
