# SPDX-License-Identifier: Apache-2.0
"""The configuration of a run as it lies in its checkpoints' manifests. Pure."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from megatron_core.checkpoint.plain import quote
from megatron_core.config.fields import Field, all_fields, replace_fields
from megatron_core.config.run import RunConfig
from megatron_core.config.values import from_yaml, to_yaml
from megatron_core.errors import CheckpointError


def config_to_json(config: RunConfig) -> dict[str, Any]:
    """A resolved config as it is saved: sections of fields, tuples as lists."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=to_yaml))
    return plain


def config_from_json(value: Mapping[str, Any]) -> RunConfig:
    """The config in a checkpoint. Fields of which it knows nothing have their defaults, as they had when it was saved.

    Raises CheckpointError where a value is not of its field's type. Fields that this program does not know are left
    out: what shapes a tensor shows in the tensors.
    """
    values: dict[Field, object] = {}
    for field in all_fields():
        section = value.get(field.section, {})
        if not isinstance(section, dict):
            raise CheckpointError(f"the checkpoint's config: {field.section} is {quote(section)}, not an object")
        if field.name in section:
            try:
                values[field] = from_yaml(field.type, section[field.name])
            except ValueError as error:
                raise CheckpointError(f"the checkpoint's config: {field.section}.{field.name} {error}") from None
    return replace_fields(RunConfig(), values)
