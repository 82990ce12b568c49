# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint holds just the tensors that a run has: nothing missing, nothing left over, every shape equal.

Pure. The run's tensors are those of all ranks together; no rank alone could tell what is left over.
"""

from collections.abc import Collection, Mapping

from megatron_core.checkpoint.manifest import Manifest
from megatron_core.errors import CheckpointError

Shape = tuple[int, ...]


def require_match(manifest: Manifest, expected: Mapping[str, Shape], sections: Collection[str]) -> None:
    """Raise CheckpointError that lists every tensor that is missing, of another shape, or left over.

    `sections`: first parts of names ("model", "master", …) that will be loaded; what lies in others is not compared.
    """
    found = differences(manifest, expected, sections)
    if found:
        listed = found[0] if len(found) == 1 else f"{len(found)} tensors differ:\n  " + "\n  ".join(found)
        raise CheckpointError(f"the checkpoint of step {manifest.step} does not fit this run: {listed}")


def differences(manifest: Manifest, expected: Mapping[str, Shape], sections: Collection[str]) -> list[str]:
    """A line for each tensor that differs, in order of name."""
    held = {entry.name: entry.shape for entry in manifest.tensors if _section(entry.name) in sections}
    wanted = {name: shape for name, shape in expected.items() if _section(name) in sections}
    return [
        _difference(name, held.get(name), wanted.get(name))
        for name in sorted(held.keys() | wanted.keys())
        if held.get(name) != wanted.get(name)
    ]


def _section(name: str) -> str:
    return name.partition("/")[0]


def _difference(name: str, held: Shape | None, wanted: Shape | None) -> str:
    if held is None:
        return f"{name}: missing in the checkpoint; the run has shape {wanted}"
    if wanted is None:
        return f"{name}: in the checkpoint, with shape {held}, but not in the run"
    return f"{name}: shape {held} in the checkpoint, {wanted} in the run"
