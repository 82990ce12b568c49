# SPDX-License-Identifier: Apache-2.0
"""What a pipeline stage can be told to do, as data that prints, compares and parses back.

A schedule lists `Action`s (compute only); `communicate` adds `Exchange`s, which makes it a program for `runtime`.
Virtual stage k = chunk · p + stage, so that stage k % p holds it as its chunk k // p; activations flow from k to k + 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple


class Kind(Enum):
    """Kinds of compute; B is I then W. The split is that of Qi et al. 2023, "Zero Bubble Pipeline Parallelism"."""

    F = "F"  # forward
    B = "B"  # whole backward
    I = "I"  # gradient of the input (the paper's B)
    W = "W"  # gradient of the weights


KIND_NAMES = {Kind.F: "forward", Kind.B: "backward", Kind.I: "input gradient", Kind.W: "weight gradient"}
_ACTION = re.compile(r"([FBIW])(\d+)\.(\d+)")


@dataclass(frozen=True)
class Action:
    """One piece of compute on one stage: `F2.1` is the forward of microbatch 2 through the stage's chunk 1."""

    kind: Kind
    microbatch: int
    chunk: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.microbatch}.{self.chunk}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Inverse of `str`. Raises ValueError when `text` is not of the form `F2.1`."""
        match = _ACTION.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no action; write kind F, B, I or W, microbatch, dot, chunk, as in F2.1")
        return cls(Kind(match[1]), int(match[2]), int(match[3]))


Payload = Literal["activation", "gradient"]


@dataclass(frozen=True)
class Transfer:
    """One tensor to or from a neighbour. `A2.1>3` sends the output of chunk 1 for microbatch 2 to stage 3.

    `chunk` is one of the stage that posts the transfer: the one that made what is sent, or will use what is received.
    """

    send: bool
    peer: int
    payload: Payload
    microbatch: int
    chunk: int

    def __str__(self) -> str:
        return f"{self.payload[0].upper()}{self.microbatch}.{self.chunk}{'>' if self.send else '<'}{self.peer}"


@dataclass(frozen=True)
class Exchange:
    """The transfers that a stage posts together; it may not go on before each has met its counterpart."""

    transfers: tuple[Transfer, ...]

    def __str__(self) -> str:
        return f"[{' '.join(map(str, self.transfers))}]"


Schedule = tuple[tuple[Action, ...], ...]  # compute only, one tuple a stage
Program = tuple[tuple[Action | Exchange, ...], ...]  # with communication, one tuple a stage


def virtual_stage(stage: int, chunk: int, p: int) -> int:
    """Position k of a stage's chunk on the way from embedding to loss, for p stages."""
    return chunk * p + stage


class Product(NamedTuple):
    """What an action makes or needs at a virtual stage: activation (F), input gradient (I) or weight gradient (W)."""

    kind: Kind
    microbatch: int
    virtual_stage: int


def needs(action: Action, k: int, last: int) -> tuple[Product, ...]:
    """Products that must exist before `action` runs at virtual stage k, where `last` is the last virtual stage."""
    if action.kind is Kind.F:
        return (Product(Kind.F, action.microbatch, k - 1),) if k > 0 else ()
    if action.kind is Kind.W:
        return (Product(Kind.I, action.microbatch, k),)
    own_forward = Product(Kind.F, action.microbatch, k)
    return (own_forward, Product(Kind.I, action.microbatch, k + 1)) if k < last else (own_forward,)


def makes(action: Action, k: int) -> Product:
    """The product that others may wait for once `action` has run at virtual stage k."""
    return Product(Kind.I if action.kind is Kind.B else action.kind, action.microbatch, k)
