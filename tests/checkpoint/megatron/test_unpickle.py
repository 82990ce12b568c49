# SPDX-License-Identifier: Apache-2.0
import argparse
import enum
import os
import pickle
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from megatron_core.checkpoint.megatron import unpickle as module
from megatron_core.checkpoint.megatron.inert import Inert
from megatron_core.errors import CheckpointError
from tests.checkpoint.megatron.pickles import read


class Backend(enum.Enum):
    AUTO = 5


class Calls:
    """Pickles as a call."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


PLAIN = {
    "none": None,
    "flags": [True, False],
    "numbers": (0, 255, 256, -1, 2**31, 2**80, -(2**80), 1.5, float("inf")),
    "text": ("", "a", "ä\n", "x" * 300),
    "bytes": (b"\xff", b"y" * 300),
    "nested": {"a": [{"b": ()}, (1, 2), (1, 2, 3), [1], (1,)]},
    "sets": ({1, 2}, frozenset("ab")),
    "ordered": OrderedDict([("x", 1), ("y", 2)]),
    "array": bytearray(b"z"),
    5: 6,
}


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    value = {k: v for k, v in PLAIN.items() if protocol > 4 or k != "array"}
    value["loop"] = loop = []
    loop.append(loop)
    value["same"] = [value["numbers"], value["numbers"]]
    found, inert = read(tmp_path, pickle.dumps(value, protocol))
    assert found["loop"][0] is found["loop"] and found["same"][0] is found["same"][1]
    del found["loop"], value["loop"]
    assert found == value and inert == frozenset()


@pytest.mark.parametrize("protocol", range(6))
def test_a_namespace_is_read_whatever_it_holds(tmp_path: Path, protocol: int) -> None:
    saved = argparse.Namespace(num_layers=2, backend=Backend.AUTO, of=Backend, call=len)
    found, inert = read(tmp_path, pickle.dumps({"args": saved}, protocol))
    fields = found["args"].fields
    name = f"{Backend.__module__}.Backend"
    assert found["args"].name == "argparse.Namespace" and fields["num_layers"] == 2
    assert name in inert and fields["of"].name == name and fields["backend"].arguments[-1:] in [(5,), ("AUTO",)]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    return tmp_path / "victim"


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_called(tmp_path: Path, victim: Path, protocol: int) -> None:
    command = f"touch {victim}"
    attribute = Calls(getattr, (Calls(__import__, ("os",)), "system"))
    attacks = {
        "system": Calls(os.system, (command,)),
        "eval": Calls(eval, (f"open({str(victim)!r}, 'w')",)),
        "open": Calls(open, (str(victim), "w")),
        "chain": Calls(exec, (Calls(getattr, (attribute, "__doc__")),)),
        "items": Calls(os.system, (command,), {"state": 1}, iter([1]), iter([("k", Calls(os.system, (command,)))])),
    }
    held: dict[str, Any] = {}
    for name, attack in attacks.items():
        try:
            found, inert = read(tmp_path, pickle.dumps(argparse.Namespace(x=attack), protocol))
        except CheckpointError:
            assert name == "items"  # elements for something that is no list
            continue
        held[name] = found.fields["x"]
        assert inert, name
    assert not victim.exists()
    assert all(isinstance(value, Inert) for value in held.values())
    assert held["system"].name == f"{os.system.__module__}.system" and held["system"].arguments == (command,)


def test_attributes_of_what_is_real_are_never_set(tmp_path: Path) -> None:
    def build(module_name: str, name: str, state: bytes) -> bytes:
        return f"c{module_name}\n{name}\n".encode() + state + b"b."

    state = pickle.dumps({"__code__": 1, "__init__": 2}, 2)[2:-1]
    slots = pickle.dumps((None, {"__code__": 1}), 2)[2:-1]
    for target in (("argparse", "Namespace"), ("torch._utils", "_rebuild_tensor_v2"), ("collections", "OrderedDict")):
        for what in (state, slots):
            found, _ = read(tmp_path, build(*target, what))
            assert isinstance(found, Inert)
    assert argparse.Namespace.__init__ is not None and "__code__" not in vars(argparse.Namespace)
    with pytest.raises(CheckpointError, match="a state for a dtype"):
        read(tmp_path, build("torch", "float32", state))
    with pytest.raises(CheckpointError, match="a state for a list"):
        read(tmp_path, b"]}b.")


def test_bombs_are_refused_or_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A memo place as high as can be: a table of that size would fill the memory.
    assert read(tmp_path, b"Nr\xff\xff\xff\xff.")[0] is None
    for length in (b"B\xff\xff\xff\xff", b"\x8e" + b"\xff" * 7 + b"\x7f", b"\x96" + b"\xff" * 7 + b"\x00"):
        with pytest.raises(CheckpointError, match="damaged or hostile pickle"):
            read(tmp_path, length + b"abc.")
    # Depth: neither reading, hashing nor letting go may recurse.
    deep = b")" + b"\x85" * 50_000
    assert read(tmp_path, deep + b".")[0]
    with pytest.raises(CheckpointError, match="a tuple as a key"):
        read(tmp_path, b"}" + deep + b"Ns.")
    chain = b"cos\nsystem\n" + b")R" * 10_000
    assert read(tmp_path, chain + b".")[0].name == "os.system"
    # One list copied again and again.
    monkeypatch.setattr(module, "_MAX_COPIED", 1000)
    copies = b"cbuiltins\nlist\nq\x00(" + b"](" + b"K\x01" * 100 + b"eq\x01" + b"h\x00h\x01\x85R" * 20 + b"t."
    with pytest.raises(CheckpointError, match="copies of more than 1000 elements"):
        read(tmp_path, copies)
    monkeypatch.setattr(module, "_MAX_PICKLE_BYTES", 1000)
    with pytest.raises(CheckpointError, match="more than 1000 bytes"):
        read(tmp_path, pickle.dumps(list(range(1000))))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"N",
        b"\xff.",
        b"h\x05.",
        b".",
        b"t.",
        b"Na.",
        b"]NNs.",
        b"(]d.",
        b"}(K\x01u.",
        b"}]Ns.",
        b"\x8f(]\x90.",
        b"Q.",
        b"NQ.",
        b"PX\n.",
        b"\x82\x01.",
        b"(ios\nsystem\n.",
        b"(cos\nsystem\no.",
        b"NN\x93.",
        b"cos\nsystem\nNR.",
        b"])R.",
        b"ctorch\nfloat32\n)R.",
        b"I" + b"9" * 5000 + b"\n.",
        b"\x97.",
    ],
)
def test_what_is_no_pickle_is_one_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, data)
    assert "\n" not in str(caught.value)


def test_every_truncation_is_one_error(tmp_path: Path) -> None:
    data = pickle.dumps(argparse.Namespace(**{str(key): value for key, value in PLAIN.items()}), 4)
    for stop in range(1, len(data), 7):
        with pytest.raises(CheckpointError):
            read(tmp_path, data[:stop])


def test_the_file_goes_on_behind_the_pickle(tmp_path: Path) -> None:
    path = tmp_path / "two"
    path.write_bytes(pickle.dumps("one", 2) + pickle.dumps("two", 4))
    file = module.FileSlice(path)
    assert [module.unpickle(file)[0] for _ in range(2)] == ["one", "two"]


def test_persistent_ids_are_asked_for_or_refused(tmp_path: Path) -> None:
    data = b"K\x05Q."
    assert read(tmp_path, data, persistent=lambda key: ("for", key))[0] == ("for", 5)
    with pytest.raises(CheckpointError, match="BINPERSID has no place"):
        read(tmp_path, data)
    assert sys.getrecursionlimit() < 50_000
