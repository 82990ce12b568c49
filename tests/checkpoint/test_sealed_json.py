# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from megatron_core.checkpoint.blocks import checksum
from megatron_core.checkpoint.sealed_json import seal, unseal
from megatron_core.errors import CheckpointError

CONTENT = {"step": 3, "names": ["a", "ü"], "x": 0.1}


def sealed(rest: bytes) -> bytes:
    """Hostile text with a right checksum."""
    rest = b'",' + rest
    return b'{"checksum":"' + checksum(rest).encode() + rest


def test_is_json_and_comes_back() -> None:
    text = seal(CONTENT)
    assert unseal(text) == CONTENT
    assert json.loads(text) | {"checksum": 0} == CONTENT | {"checksum": 0}


def test_any_flipped_bit_is_noticed() -> None:
    text = seal(CONTENT)
    for bit in range(8 * len(text)):
        damaged = bytearray(text)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointError):
            unseal(bytes(damaged))


@pytest.mark.parametrize("length", [0, 5, 20, 40])
def test_cut_off(length: int) -> None:
    with pytest.raises(CheckpointError):
        unseal(seal(CONTENT)[:length])


@pytest.mark.parametrize(
    "rest, message",
    [
        (b'"a":1,"a":2}', "key 'a' appears twice"),
        (b'"b":{"a":1,"a":2}}', "key 'a' appears twice"),
        (b'"checksum":"x"}', "key 'checksum' appears twice"),
        (b'"a":NaN}', "holds NaN, which is not a finite number"),
        (b'"a":-Infinity}', "-Infinity"),
        (b'"a":' + b"[" * 10**6 + b"]" * 10**6 + b"}", "nested too deeply"),
        (b'"a":1', "not JSON"),
        (b'"a":' + b"9" * 10**5 + b"}", "not JSON"),
        (b'"a":"\xff"}', "not JSON"),
        (b'"a":1} {}', "not JSON"),
    ],
)
def test_hostile_text(rest: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        unseal(sealed(rest))
    assert "\n" not in str(caught.value)
