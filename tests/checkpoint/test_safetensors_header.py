# SPDX-License-Identifier: Apache-2.0
import torch
from safetensors import safe_open

from megatron_core.checkpoint.safetensors_header import encode_header


def test_safetensors_itself_reads_what_is_written(tmp_path):
    wide, narrow = torch.arange(6.0), torch.arange(5).to(torch.bfloat16)
    header = encode_header([("a", "float32", (2, 3), 24), ("b.c", "bfloat16", (5,), 10)], {"format": "pt"})
    assert len(header) % 8 == 0
    path = tmp_path / "x.safetensors"
    path.write_bytes(header + wide.numpy().tobytes() + narrow.view(torch.uint8).numpy().tobytes())
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert torch.equal(file.get_tensor("a"), wide.view(2, 3)) and torch.equal(file.get_tensor("b.c"), narrow)
