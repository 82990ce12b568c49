# SPDX-License-Identifier: Apache-2.0
"""Hardware as the text of a YAML file that `hardware` reads back."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from megatron_core.planner.hardware import Hardware

_DIGITS = 4
"""Significant ones: measurements are not better."""


def hardware_text(hardware: Hardware, comment: str) -> str:
    """The file's content, below a comment of one line."""
    lines = [f"# {comment}", "device:"]
    for field in dataclasses.fields(hardware.device):
        value = getattr(hardware.device, field.name)
        if field.name in ("measured_matmuls", "measured_operators"):
            lines.append(f"  {field.name}:")
            lines.extend(f"  - {_flow(vars(one))}" for one in value)
        elif value != field.default:
            lines.append(f"  {field.name}: {_text(dict(value) if field.name == 'tflops' else value)}")
    lines.extend(_others(hardware))
    return "\n".join(lines) + "\n"


def _others(hardware: Hardware) -> Iterator[str]:
    for field in dataclasses.fields(hardware):
        value = getattr(hardware, field.name)
        if field.name not in ("name", "device") and value != field.default:
            yield f"{field.name}: {_text(value)}"


def _flow(values: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {_text(value)}" for name, value in values.items()) + "}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return _flow(value)
    # With a point: of 1e-05 PyYAML does not know that it is a number.
    return f"{value:#.{_DIGITS}g}" if isinstance(value, float) else str(value)
