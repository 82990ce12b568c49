# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from typing import Any

import pytest

from megatron_core.checkpoint.blocks import checksum
from megatron_core.checkpoint.manifest_json import (
    decode_manifest,
    decode_rank_file,
    encode_manifest,
    encode_rank_file,
)
from megatron_core.checkpoint.sealed_json import seal, unseal
from megatron_core.checkpoint.writer import write_rank_file
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint


@pytest.fixture
def text(tmp_path: Path) -> bytes:
    return encode_manifest(small_checkpoint.save(tmp_path))


def test_comes_back_the_same(tmp_path: Path) -> None:
    manifest = small_checkpoint.save(tmp_path)
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert encode_manifest(decode_manifest(encode_manifest(manifest))) == encode_manifest(manifest)


def test_a_ranks_part_comes_back_the_same(tmp_path: Path) -> None:
    written = write_rank_file(tmp_path, "x.safetensors", small_checkpoint.shards()[0])
    assert decode_rank_file(encode_rank_file(written)) == written


@pytest.mark.parametrize(
    "path, value, message",
    [
        (["version"], 2, "^format version 2, but this program reads version 1 only$"),
        (["version"], None, "^the manifest: version is None, not a whole number"),
        (["step"], 3.0, r"^the manifest: step is 3\.0, not a whole number"),
        (["extra"], 1, "^the manifest has unknown keys: 'extra'$"),
        (["tensors"], {}, "^the manifest: tensors is an object, not a list$"),
        (["tensors", 0], "x", "^tensor 0 is 'x', not an object$"),
        (["tensors", 0, "shape"], [6, -10], "^tensor 0: shape is -10, not a whole number"),
        (["tensors", 0, "more"], 1, "^tensor 0 has unknown keys: 'more'$"),
        (["tensors", 1, "pieces", 2, "offset"], 1e999, "^tensor mask/w: piece 2: offset is inf, not a finite number$"),
        (["tensors", 1, "pieces", 0, "stop"], [6], "^tensor mask/w: piece 0: start has 2 dims, stop has 1$"),
        (["tensors", 1, "pieces", 0, "checksums"], [7], "^tensor mask/w: piece 0: checksum is 7, not a text$"),
        (["files", 1, "name"], 5, "^file 1: name is 5, not a text$"),
        (["state"], [], "^the manifest: state is a list, not an object$"),
        (["state", "loss_scale"], 1e999, r"^state\.loss_scale is inf, not a finite number$"),
    ],
)
def test_wrong_types_are_named(text: bytes, path: list[Any], value: Any, message: str) -> None:
    content = unseal(text)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    hostile = seal_anything(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        decode_manifest(hostile)
    assert "\n" not in str(caught.value)


def seal_anything(content: dict[str, Any]) -> bytes:
    """As `seal`, but infinities become 1e999, which JSON allows and Python reads as infinity."""
    rest = b'",' + json.dumps(content).replace("Infinity", "1e999").encode()[1:]
    return b'{"checksum":"' + checksum(rest).encode() + rest


def test_nothing_that_makes_no_sense_is_written(tmp_path: Path) -> None:
    manifest = small_checkpoint.save(tmp_path)
    object.__setattr__(manifest, "files", manifest.files[:1])
    with pytest.raises(CheckpointError, match="which is not among the files"):
        encode_manifest(manifest)


def test_missing_keys(text: bytes) -> None:
    content = unseal(text)
    del content["config"]
    with pytest.raises(CheckpointError, match=r"^the manifest has no config$"):
        decode_manifest(seal(content))
