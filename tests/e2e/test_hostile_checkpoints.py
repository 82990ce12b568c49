# SPDX-License-Identifier: Apache-2.0
"""Checkpoints made to harm, or broken: nothing outside is opened, nothing runs, nothing large is allocated.

Each is loaded as a run loads: found, compared with what the run has, then every tensor read.
"""

import json
import os
import pickle
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_core.checkpoint.blocks import checksum
from megatron_core.checkpoint.directory import read_manifest, step_directory
from megatron_core.checkpoint.find import find_step
from megatron_core.checkpoint.match import require_match
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import whole
from megatron_core.checkpoint.sealed_json import unseal
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint

LARGE = 10 * 2**30
FILE = "rank_00000.safetensors"
TENSORS = small_checkpoint.tensors()


def load(root: Path) -> dict[str, torch.Tensor]:
    manifest = find_step(root, 3).manifest
    assert manifest is not None
    sections = {name.partition("/")[0] for name in TENSORS}
    require_match(manifest, {name: tuple(values.shape) for name, values in TENSORS.items()}, sections)
    with CheckpointReader(step_directory(root, 3), manifest) as reader:
        return {
            name: reader.load_rectangle(name, whole(values.shape), values.dtype) for name, values in TENSORS.items()
        }


class Content:
    """A manifest's content, to be spoilt and sealed again with a right checksum."""

    def __init__(self, root: Path) -> None:
        self.directory = step_directory(root, 3)
        self.path = self.directory / "manifest.json"
        self.json: Any = unseal(self.path.read_bytes())

    def tensor(self, name: str) -> Any:
        return next(entry for entry in self.json["tensors"] if entry["name"] == name)

    def write(self, text: str | None = None) -> None:
        rest = b'",' + (json.dumps(self.json) if text is None else text).encode()[1:]
        self.path.write_bytes(b'{"checksum":"' + checksum(rest).encode() + rest)


class Payload:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def pickle_as_data(content: Content) -> None:
    (content.directory / FILE).write_bytes(pickle.dumps(Payload(content.directory.parent / "owned")))


def pickle_of_the_right_size(content: Content) -> None:
    size = (content.directory / FILE).stat().st_size
    text = pickle.dumps(Payload(content.directory.parent / "owned"))
    (content.directory / FILE).write_bytes(text + b"\0" * (size - len(text)))


def pickle_as_manifest(content: Content) -> None:
    content.path.write_bytes(pickle.dumps(Payload(content.directory.parent / "owned")))


def parent_path(content: Content) -> None:
    content.json["files"][0]["name"] = "../../etc/passwd.safetensors"
    content.write()


def absolute_path(content: Content) -> None:
    content.json["files"][0]["name"] = "/etc/passwd"
    content.write()


def piece_elsewhere(content: Content) -> None:
    content.tensor("master/w")["pieces"][0]["file"] = "../secret.safetensors"
    content.write()


def beyond_the_file(content: Content) -> None:
    content.tensor("model/norm")["pieces"][0]["offset"] = LARGE
    content.write()


def beyond_the_real_file(content: Content) -> None:
    """Declared and consistent, but the file is small."""
    big(content)
    content.write()


def sparse_giant(content: Content) -> None:
    """As declared: a file of 10 GB, without blocks on the disk."""
    big(content)
    os.truncate(content.directory / "rank_00001.safetensors", content.json["files"][1]["size"])
    content.write()


def big(content: Content) -> None:
    """The second file ends with a tensor of 10 GB."""
    file = content.json["files"][1]
    nbytes = LARGE // 4 * 4
    piece = {"file": file["name"], "offset": file["size"], "nbytes": nbytes, "start": [0], "stop": [LARGE // 4]}
    content.json["tensors"].append(
        {
            "name": "model/z",
            "shape": [LARGE // 4],
            "dtype": "float32",
            "pieces": [piece | {"checksums": ["0" * 16] * (LARGE // (4 * 2**20))}],
        }
    )
    file["size"] += nbytes


def declared_shape(content: Content) -> None:
    content.tensor("master/w")["shape"] = [LARGE, 10]
    content.write()


def declared_header(content: Content) -> None:
    content.json["files"][0]["header_bytes"] = LARGE
    content.write()


def overlapping(content: Content) -> None:
    pieces = content.tensor("master/w")["pieces"]
    pieces[1] = pieces[1] | {"start": [0, 3], "stop": [6, 6]}
    content.write()


def bytes_used_twice(content: Content) -> None:
    tensor = content.tensor("adam_v/scalar")
    tensor["pieces"][0]["offset"] -= 4
    content.write()


def nan_state(content: Content) -> None:
    content.json["state"]["loss_scale"] = float("nan")
    content.write()


def infinite_state(content: Content) -> None:
    content.write(json.dumps(content.json).replace("65536.0", "1e999"))


def link_out(content: Content) -> None:
    secret = content.directory.parent / "secret"
    secret.write_bytes((content.directory / FILE).read_bytes())
    (content.directory / FILE).unlink()
    (content.directory / FILE).symlink_to(secret)


def manifest_link(content: Content) -> None:
    content.path.rename(content.directory.parent / "other.json")
    content.path.symlink_to(content.directory.parent / "other.json")


def directory_link(content: Content) -> None:
    elsewhere = content.directory.parent / "elsewhere"
    content.directory.rename(elsewhere)
    content.directory.symlink_to(elsewhere)


def pipe(content: Content) -> None:
    (content.directory / FILE).unlink()
    os.mkfifo(content.directory / FILE)


def truncated(content: Content) -> None:
    os.truncate(content.directory / FILE, 700)


def missing_file(content: Content) -> None:
    (content.directory / FILE).unlink()


def flipped_bit(content: Content) -> None:
    flip(content.directory / FILE, content.tensor("master/w")["pieces"][0]["offset"] * 8 + 13)


def flipped_header_bit(content: Content) -> None:
    flip(content.directory / FILE, 8 * 100 + 3)


def flipped_manifest_bit(content: Content) -> None:
    flip(content.path, 8 * 200)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def not_json(content: Content) -> None:
    content.write('{"version":1,')


def text_file(content: Content) -> None:
    content.path.write_text("hello\n")


def empty_file(content: Content) -> None:
    content.path.write_bytes(b"")


def other_version(content: Content) -> None:
    content.json["version"] = 99
    content.write()


def deep_nesting(content: Content) -> None:
    content.write('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")


def deep_config(content: Content) -> None:
    content.write(json.dumps(content.json).replace('"split": [', '"split": ' + "[" * 200 + "]" * 200 + ', "b": ['))


def same_tensor_twice(content: Content) -> None:
    content.json["tensors"].append(content.tensor("master/w"))
    content.write()


def same_key_twice(content: Content) -> None:
    content.write(json.dumps(content.json).replace('"version": 1', '"version": 1, "version": 1'))


def line_break_in_name(content: Content) -> None:
    content.tensor("master/w")["name"] = "master/w\nstep 4 | loss 0.0"
    content.write()


HOSTILE: dict[Callable[[Content], None], str] = {
    pickle_as_data: f"{FILE} has .* bytes, but .* were written",
    pickle_of_the_right_size: f"{FILE} is not the safetensors file that was written: its first bytes are",
    pickle_as_manifest: r"manifest\.json: not a manifest: it begins with b'\\x80",
    parent_path: r"'\.\./\.\./etc/passwd\.safetensors' is no plain name of a \.safetensors file",
    absolute_path: "'/etc/passwd' is no plain name",
    piece_elsewhere: r"tensor master/w: piece \[0:6, 0:4\] is in '\.\./secret\.safetensors', which is not among",
    beyond_the_file: r"tensor model/norm: piece \[0:5\]: 40 bytes at 10737418240 do not lie in",
    beyond_the_real_file: r"rank_00001\.safetensors has .* bytes, but 10737",
    sparse_giant: "does not fit this run: model/z: in the checkpoint, with shape .* but not in the run",
    declared_shape: "tensor master/w: its pieces hold 60 of 107374182400 elements",
    declared_header: f"{FILE}: a header of 10737418240 bytes",
    overlapping: r"tensor master/w: pieces \[0:6, 0:4\] and \[0:6, 3:6\] overlap",
    bytes_used_twice: f"{FILE}: .* ends at byte .* but .* begins at",
    nan_state: "manifest.json: holds NaN, which is not a finite number",
    infinite_state: r"manifest.json: state\.loss_scale is inf, not a finite number",
    link_out: f"{FILE} is a symbolic link",
    manifest_link: r"manifest\.json is a symbolic link",
    directory_link: "step_00000003 is a symbolic link",
    pipe: f"{FILE} is not a regular file",
    truncated: f"{FILE} has 700 bytes, but .* were written",
    missing_file: f"cannot read .*{FILE}: No such file",
    flipped_bit: f"{FILE}: damaged: block 0 of a piece",
    flipped_header_bit: f"{FILE} is damaged: its header does not match its checksum",
    flipped_manifest_bit: r"manifest\.json: damaged: its checksum does not match",
    not_json: r"manifest\.json: not JSON: ",
    text_file: r"manifest\.json: not a manifest: it begins with b'hello\\n'",
    empty_file: r"manifest\.json: not a manifest: it begins with b''",
    other_version: r"manifest\.json: format version 99, but this program reads version 1 only",
    deep_nesting: r"manifest\.json: nested too deeply",
    deep_config: r"manifest\.json: config is nested more than 32 deep",
    same_tensor_twice: r"manifest\.json: tensor master/w is listed twice",
    same_key_twice: r"manifest\.json: key 'version' appears twice",
    line_break_in_name: r"manifest\.json: 'master/w\\nstep 4 \| loss 0\.0' is no tensor name",
}


@pytest.mark.parametrize("spoil", HOSTILE, ids=lambda spoil: spoil.__name__)
def test_each_gets_its_own_error(
    spoil: Callable[[Content], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_checkpoint.save(tmp_path)
    spoil(Content(tmp_path))
    empty, allocated = torch.empty, []

    def watched(*arguments: Any, **keys: Any) -> torch.Tensor:
        tensor = empty(*arguments, **keys)
        allocated.append(tensor.nbytes)
        return tensor

    monkeypatch.setattr(torch, "empty", watched)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=HOSTILE[spoil]) as caught:
        load(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20 and sum(allocated) < 2**20
    assert not (tmp_path / "owned").exists(), "the payload ran"
    assert "\n" not in str(caught.value)


def test_the_unspoilt_one_loads(tmp_path: Path) -> None:
    small_checkpoint.save(tmp_path)
    content = Content(tmp_path)
    content.write()
    assert {name: torch.equal(values, TENSORS[name]) for name, values in load(tmp_path).items()} == dict.fromkeys(
        TENSORS, True
    )


def test_any_single_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """Of 200 bits anywhere in the checkpoint, headers and manifest too."""
    small_checkpoint.save(tmp_path)
    directory = step_directory(tmp_path, 3)
    paths = sorted(directory.iterdir())
    generator = random.Random(5)
    for _ in range(200):
        path = generator.choice(paths)
        bit = generator.randrange(8 * path.stat().st_size)
        flip(path, bit)
        with pytest.raises(CheckpointError):
            load(tmp_path)
        flip(path, bit)
    load(tmp_path)
    assert read_manifest(tmp_path, 3).step == 3
