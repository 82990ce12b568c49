# SPDX-License-Identifier: Apache-2.0
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatron_core.checkpoint.megatron.inert import Inert
from megatron_core.checkpoint.megatron.pickled_values import Storage, build, is_expected, storage_dtype
from megatron_core.errors import CheckpointError
from tests.checkpoint.megatron.pickles import read

STORAGE = Storage(path=Path("none"), start=0, dtype=torch.float32, numel=12)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_numpy_and_containers(tmp_path: Path, protocol: int) -> None:
    saved = {
        "c": np.arange(12).reshape(3, 4),
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "scalar": np.float32(0.1),
        "whole": np.int64(-5),
        "flag": np.array([True, False]),
        "text": np.array(["ab", "c"]),
        "none": np.zeros((0, 3)),
        "state": np.random.RandomState(3).get_state(),
        "default": defaultdict(list, {"k": [1]}),
        "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]),
    }
    found, inert = read(tmp_path, pickle.dumps(saved, protocol))
    for name in ("c", "f", "flag", "text", "none"):
        assert np.array_equal(found[name], saved[name]) and found[name].dtype == saved[name].dtype, name
    assert (found["state"][1] == saved["state"][1]).all()
    assert found["scalar"] == np.float32(0.1) and found["whole"] == -5 and found["size"] == (2, 3)
    assert found["dtype"] is torch.bfloat16 and found["default"]["k"] == [1]
    assert not [name for name in inert if "builtins.list" not in name]


def test_arrays_of_objects_and_other_byte_orders_are_refused(tmp_path: Path) -> None:
    for array in (np.array([object], dtype=object), np.arange(3, dtype=">i4"), np.zeros(2, "i4,f8")):
        with pytest.raises(CheckpointError, match=r"numpy dtype|byte order"):
            read(tmp_path, pickle.dumps(array, 2))


def test_arrays_have_their_bytes(tmp_path: Path) -> None:
    honest = pickle.dumps(np.arange(5, dtype=np.int16), 2)
    assert b"K\x05\x85" in honest
    with pytest.raises(CheckpointError, match="10 bytes for an array of shape"):
        read(tmp_path, honest.replace(b"K\x05\x85", b"J\xff\xff\xff\x7f\x85"))


def tensor(*arguments: Any) -> object:
    return build(Inert("torch._utils._rebuild_tensor_v2"), arguments)


def test_tensors_are_views_within_their_storage() -> None:
    made = tensor(STORAGE, 2, (2, 3), (5, 1), False, {})
    assert (made.layout.storage_offset(), made.layout.stride(), made.shape, made.dtype) == (  # type: ignore[attr-defined]
        2,
        (5, 1),
        (2, 3),
        torch.float32,
    )
    assert tensor(STORAGE, 0, (0, 3), (3, 1)).shape == (0, 3)  # type: ignore[attr-defined]
    for offset, size, stride in (
        (3, (2, 3), (7, 1)),
        (12, (), ()),
        (0, (13,), (1,)),
        (0, (2**40,), (0,)),
        (0, (2**20, 2**20), (0, 0)),
        (-1, (2,), (1,)),
        (0, (2,), (-1,)),
        (0, (2, 2), (1,)),
        (0, (True,), (1,)),
        (0, [2], (1,)),
        (0, (1,) * 17, (1,) * 17),
        (0, (2**49,), (1,)),
    ):
        with pytest.raises(ValueError):
            tensor(STORAGE, offset, size, stride)
    with pytest.raises(ValueError, match="without a storage"):
        tensor(Inert("x"), 0, (1,), (1,))


def test_a_parameter_and_a_subclass_are_their_tensor() -> None:
    made = tensor(STORAGE, 0, (12,), (1,))
    assert build(Inert("torch._utils._rebuild_parameter"), (made, True, {})) is made
    rebuild = Inert("torch._tensor._rebuild_from_type_v2")
    subclass = (Inert("torch._utils._rebuild_tensor_v2"), Inert("a.Tensor"), (STORAGE, 0, (12,), (1,)), {})
    assert build(rebuild, subclass).shape == (12,)  # type: ignore[attr-defined]
    other = build(rebuild, (Inert("os.system"), Inert("a.Tensor"), ("true",), {}))
    assert isinstance(other, Inert) and other.name == "os.system"
    with pytest.raises(ValueError, match="without a tensor"):
        build(Inert("torch._utils._rebuild_parameter"), (5,))


def test_storages_have_a_known_type() -> None:
    assert storage_dtype(Inert("torch.BFloat16Storage")) is torch.bfloat16
    for kind in (Inert("torch.ComplexFloatStorage"), Inert("os.system"), None):
        with pytest.raises(ValueError, match="a storage of type"):
            storage_dtype(kind)


def test_what_belongs_into_a_checkpoint_is_not_told() -> None:
    assert is_expected("argparse.Namespace") and is_expected("torch.distributed.checkpoint.metadata.Metadata")
    assert is_expected("torch.FloatStorage") and is_expected("collections.OrderedDict")
    assert not is_expected("os.system") and not is_expected("torch.load")
    assert isinstance(build(Inert("torch.load"), None), Inert) and build(Inert("torch.float16"), None) is torch.float16
