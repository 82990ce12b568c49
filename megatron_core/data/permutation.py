# SPDX-License-Identifier: Apache-2.0
"""Keyed shuffle of [0, n) without a table: any element in constant time and memory.

A Feistel network over pairs (left, right) with left < a, right < b, where a·b is the smallest near-square not below n:
each round adds a keyed hash of one half to the other, modulo its size, which can be undone whatever the hash is, so the
network is a bijection of [0, a·b). What falls outside [0, n) is sent round again (cycle walking, Black and Rogaway
2002), which keeps it a bijection of [0, n); a·b exceeds n by at most about 2·√n, so that this is rare.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from megatron_core.data.keyed_hash import keyed_hash

_ROUNDS = 6
_MASK = (1 << 64) - 1

Index = TypeVar("Index", int, np.ndarray)


@dataclass(frozen=True)
class Permutation:
    """Bijection of [0, n) chosen by `key`."""

    n: int
    key: tuple[int | str, ...]

    def __post_init__(self) -> None:
        assert 1 <= self.n < 2**62, f"cannot permute {self.n} elements"

    def __call__(self, index: int) -> int:
        """Image of one element."""
        assert 0 <= index < self.n, f"{index} is not in [0, {self.n})"
        image = self._network(index)
        while image >= self.n:
            image = self._network(image)
        return image

    def many(self, indices: np.ndarray) -> np.ndarray:
        """Images of an array of elements, int64, equal to calling each."""
        images = self._network(np.asarray(indices, dtype=np.uint64))
        while (outside := images >= self.n).any():
            images[outside] = self._network(images[outside])
        return images.astype(np.int64)

    @cached_property
    def _sides(self) -> tuple[int, int]:
        a = math.isqrt(self.n - 1) + 1
        return a, -(-self.n // a)

    @cached_property
    def _round_keys(self) -> tuple[int, ...]:
        base = keyed_hash("permutation", *self.key)
        return tuple(_mix(r + 1, base) for r in range(2 * _ROUNDS))

    def _network(self, index: Index) -> Index:
        """One pass over [0, a·b); the same code runs on a Python int and on a uint64 array."""
        a, b = self._sides
        left, right = index // b, index % b
        for r in range(0, 2 * _ROUNDS, 2):
            left = (left + _mix(right, self._round_keys[r]) % a) % a
            right = (right + _mix(left, self._round_keys[r + 1]) % b) % b
        return left * b + right


def _mix(x: Index, key: int) -> Index:
    """Finaliser of splitmix64 over x xor key; on arrays the products wrap, on Python ints the mask does it."""
    x = (x ^ key) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
