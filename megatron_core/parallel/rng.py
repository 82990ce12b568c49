# SPDX-License-Identifier: Apache-2.0
"""Random streams keyed by what they are for, never by call order.

A stream is named by (seed, purpose, coordinates...), for example (1234, "init", "layers.3.mlp.up.weight", 0). Any rank
can open any stream, so that what is drawn depends on neither the layout nor on what was drawn before.
"""

import hashlib

import torch

Key = int | str


def keyed_seed(*key: Key) -> int:
    """A 63-bit seed from the parts of a name; different names give independent seeds."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def keyed_generator(*key: Key, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator at the start of the stream that `key` names."""
    generator = torch.Generator(device=device)
    generator.manual_seed(keyed_seed(*key))
    return generator
