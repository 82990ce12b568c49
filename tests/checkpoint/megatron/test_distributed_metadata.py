# SPDX-License-Identifier: Apache-2.0
import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata

from megatron_core.checkpoint.megatron.distributed_metadata import read_metadata
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.errors import CheckpointError

VALUES = torch.arange(12.0).view(4, 3)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
        dcp.save({"w": VALUES, "state": [{"a": 1}]}, checkpoint_id=str(tmp_path), planner=planner, no_dist=True)
    return tmp_path


def test_tensors_and_objects_are_found(directory: Path) -> None:
    metadata = read_metadata(directory)
    assert metadata.inert == frozenset()
    (stored,) = metadata.tensors.values()
    assert stored.shape == (4, 3) and stored.chunks == (Rectangle((0, 0), (4, 3)),)
    assert torch.equal(metadata.open("w", (0, 0)).value.read(), VALUES)
    assert metadata.open("state", None).value == [{"a": 1}]
    with pytest.raises(CheckpointError, match="is said to exist but lies in no file"):
        metadata.open("w", (1, 0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relative_path": "../x"}, "no place in a file of the same directory"),
        ({"relative_path": "/etc/passwd"}, "no place in a file of the same directory"),
        ({"offset": None}, "no place"),
        ({"offset": 2**40}, "has .* bytes"),
        ({"length": 5}, "damaged zip|no file"),
        ({"transform_descriptors": ("zstd",)}, "is compressed"),
    ],
)
def test_places_that_are_none(directory: Path, changes: dict[str, Any], message: str) -> None:
    path = directory / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    metadata.storage_data = {key: replace(info, **changes) for key, info in metadata.storage_data.items()}
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=message):
        read_metadata(directory).open("w", (0, 0))


def metadata_of(**changes: Any) -> Any:
    properties = torch.distributed.checkpoint.metadata.TensorProperties(dtype=torch.float32)
    chunk = ChunkStorageMetadata(offsets=changes.pop("offsets", (0,)), sizes=changes.pop("sizes", (3,)))
    tensor = TensorStorageMetadata(
        properties=properties, size=changes.pop("size", torch.Size([3])), chunks=changes.pop("chunks", [chunk])
    )
    index = changes.pop("index", MetadataIndex("w", torch.Size([0])))
    places = {index: changes.pop("place", _StorageInfo("x", 0, 1))}
    return Metadata(
        state_dict_metadata=changes.pop("tensors", {"w": tensor}), storage_data=changes.pop("places", places)
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 1}, "a dict instead of metadata.Metadata"),
        (metadata_of(tensors=[1]), "a list instead of a dictionary"),
        (metadata_of(places=None), "a NoneType instead of a dictionary"),
        (metadata_of(size=(2**60,)), "an impossible shape"),
        (metadata_of(size=[3]), "an impossible shape"),
        (metadata_of(offsets=(-1,)), "an impossible shape"),
        (metadata_of(sizes=(3, 1)), "a chunk with other dims"),
        (metadata_of(chunks={1: 2}), "chunks that are no list"),
        (metadata_of(chunks=[None]), "a NoneType instead of metadata.ChunkStorageMetadata"),
        (metadata_of(index="w"), "a str instead of metadata.MetadataIndex"),
        (metadata_of(place=5), "a int instead of filesystem._StorageInfo"),
        (metadata_of(index=MetadataIndex(7)), "a name that is no text"),  # type: ignore[arg-type]
    ],
)
def test_metadata_that_make_no_sense(tmp_path: Path, value: Any, message: str) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(value))
    with pytest.raises(CheckpointError, match=f"is no metadata of a distributed checkpoint: .*{message}"):
        read_metadata(tmp_path)


def test_no_metadata(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot read"):
        read_metadata(tmp_path)
