# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint import stream as stream_module
from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.stream import stream
from tests.checkpoint import small_checkpoint


@pytest.mark.parametrize("part_bytes", [1, 20, 2**24])
def test_each_element_once_in_small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    monkeypatch.setattr(stream_module, "PART_BYTES", part_bytes)
    manifest = small_checkpoint.save(tmp_path)
    with CheckpointReader(step_directory(tmp_path, 3), manifest) as reader:
        for entry in manifest.tensors:
            expected = small_checkpoint.tensors()[entry.name]
            found, times = torch.zeros_like(expected), torch.zeros(expected.shape)
            for rectangle, values in stream(reader, entry):
                assert values.nbytes <= max(part_bytes, entry.itemsize) and values.dtype == expected.dtype
                place = rectangle.slices((0,) * expected.dim())
                found[place], times[place] = values, times[place] + 1
            assert torch.equal(found, expected) and bool((times == 1).all()), entry.name
