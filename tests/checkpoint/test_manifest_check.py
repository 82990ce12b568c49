# SPDX-License-Identifier: Apache-2.0
"""Each way in which a manifest can be wrong has its own one-line message that names the tensor or the file."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from megatron_core.checkpoint.manifest import DataFile, Manifest, Piece, TensorEntry
from megatron_core.checkpoint.manifest_check import check_manifest
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.errors import CheckpointError

FILE = "rank_00000.safetensors"


def piece(offset: int, start: tuple[int, ...], stop: tuple[int, ...], nbytes: int = 12) -> Piece:
    return Piece(file=FILE, offset=offset, nbytes=nbytes, rectangle=Rectangle(start, stop), checksums=("00ff" * 4,))


GOOD = Manifest(
    step=1,
    tensors=(
        TensorEntry(
            name="model/a", shape=(2, 3), dtype="float32", pieces=(piece(16, (0, 0), (1, 3)), piece(28, (1, 0), (2, 3)))
        ),
        TensorEntry(name="model/s", shape=(), dtype="float32", pieces=(piece(40, (), (), 4),)),
    ),
    files=(DataFile(name=FILE, size=44, header_bytes=16, header_checksum="0" * 16),),
    state={"step": 1},
    config={"a": [None, True]},
)


def with_tensor(**fields: Any) -> Manifest:
    return replace(GOOD, tensors=(replace(GOOD.tensors[0], **fields), GOOD.tensors[1]))


def with_piece(**fields: Any) -> Manifest:
    first, second = GOOD.tensors[0].pieces
    return with_tensor(pieces=(first, replace(second, **fields)))


def with_file(**fields: Any) -> Manifest:
    return replace(GOOD, files=(replace(GOOD.files[0], **fields),))


def test_a_good_one() -> None:
    check_manifest(GOOD)


FAULTS: dict[str, tuple[Callable[[], Manifest], str]] = {
    "version": (lambda: replace(GOOD, version=2), "^format version 2, but this program reads version 1 only"),
    "parent": (lambda: with_file(name="../x.safetensors"), r"'\.\./x\.safetensors' is no plain name"),
    "absolute": (lambda: with_file(name="/etc/x.safetensors"), "is no plain name"),
    "below": (lambda: with_file(name="a/x.safetensors"), "is no plain name"),
    "nul": (lambda: with_file(name="x\0.safetensors"), "is no plain name"),
    "line": (lambda: with_file(name="x.safetensors\n"), "is no plain name"),
    "suffix": (lambda: with_file(name="x.pkl"), "is no plain name"),
    "hidden": (lambda: with_file(name=".x.safetensors"), "is no plain name"),
    "file twice": (lambda: replace(GOOD, files=GOOD.files * 2), f"file {FILE} is listed twice"),
    "header size": (lambda: with_file(header_bytes=45), f"{FILE}: a header of 45 bytes in a file of 44"),
    "header none": (lambda: with_file(header_bytes=8), "a header of 8 bytes"),
    "header huge": (lambda: with_file(header_bytes=2**40, size=2**41), "a header of 1099511627776 bytes"),
    "tensor name": (lambda: with_tensor(name="model/a#1"), "'model/a#1' is no tensor name"),
    "tensor line": (lambda: with_tensor(name="a\nb"), r"'a\\nb' is no tensor name"),
    "tensor twice": (lambda: with_tensor(name="model/s"), "tensor model/s is listed twice"),
    "dtype": (lambda: with_tensor(dtype="object"), "tensor model/a: unknown dtype 'object'; known are float64"),
    "empty shape": (lambda: with_tensor(shape=(0, 3)), r"tensor model/a: impossible shape \(0, 3\)"),
    "many dims": (lambda: with_tensor(shape=(1,) * 9), "impossible shape"),
    "vast": (lambda: with_tensor(shape=(2**40, 2**40)), "has more bytes than any file"),
    "larger shape": (lambda: with_tensor(shape=(3, 3)), "tensor model/a: its pieces hold 6 of 9 elements"),
    "no pieces": (lambda: with_tensor(pieces=()), "tensor model/a: its pieces hold 0 of 6 elements"),
    "no scalar": (
        lambda: replace(GOOD, tensors=(GOOD.tensors[0], replace(GOOD.tensors[1], pieces=()))),
        "model/s: its pieces hold 0 of 1",
    ),
    "scalar twice": (
        lambda: replace(GOOD, tensors=(replace(GOOD.tensors[1], pieces=GOOD.tensors[1].pieces * 2),)),
        "model/s: its pieces hold 2 of 1",
    ),
    "outside": (lambda: with_piece(rectangle=Rectangle((2, 0), (3, 3))), r"piece \[2:3, 0:3\] is no part of shape"),
    "dims": (lambda: with_piece(rectangle=Rectangle((0,), (3,))), r"piece \[0:3\] is no part of shape"),
    "backwards": (lambda: with_piece(rectangle=Rectangle((1, 3), (2, 0))), r"piece \[1:2, 3:0\] is no part of shape"),
    "overlap": (lambda: with_piece(rectangle=Rectangle((0, 0), (1, 3))), r"\[0:1, 0:3\] and \[0:1, 0:3\] overlap"),
    "nbytes": (lambda: with_piece(nbytes=11), "has 11 bytes, but 3 elements of float32 take 12"),
    "other file": (lambda: with_piece(file="x.safetensors"), "is in 'x.safetensors', which is not among the files"),
    "beyond": (lambda: with_piece(offset=33), f"12 bytes at 33 do not lie in {FILE}, whose data are bytes 16 to 44"),
    "in header": (lambda: with_piece(offset=8), "12 bytes at 8 do not lie in"),
    "no checksums": (lambda: with_piece(checksums=()), "has 0 checksums, but 12 bytes are 1 blocks"),
    "checksums": (lambda: with_piece(checksums=("0" * 16,) * 2), "has 2 checksums"),
    "no checksum": (lambda: with_piece(checksums=("0" * 15 + "g",)), "'000000000000000g' is no checksum"),
    "bytes twice": (lambda: with_piece(offset=16), f"{FILE}: model/a ends at byte 28, but model/a begins at 16"),
    "stray bytes": (lambda: with_file(size=50), f"{FILE}: bytes 44 to 50 belong to no tensor"),
    "state": (lambda: replace(GOOD, state={"loss_scale": float("nan")}), r"state\.loss_scale is nan, not a finite"),
    "config": (lambda: replace(GOOD, config={"a": float("inf")}), r"config\.a is inf, not a finite number"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_named(fault: str) -> None:
    build, message = FAULTS[fault]
    with pytest.raises(CheckpointError, match=message) as caught:
        check_manifest(build())
    assert "\n" not in str(caught.value)
