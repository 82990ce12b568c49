# SPDX-License-Identifier: Apache-2.0
"""One report of all that is wrong with a configuration, each violation with its numbers and its remedy."""

from collections.abc import Container, Iterable

from megatron_core.config.fields import all_fields
from megatron_core.config.ranges import out_of_range
from megatron_core.config.rules import (
    activation_offload,
    checkpoint,
    data,
    faults,
    layout,
    model,
    optim,
    recompute,
    training,
)
from megatron_core.config.rules.rule import Rule
from megatron_core.config.run import RunConfig
from megatron_core.errors import ConfigError

_RULES = (
    *model.RULES,
    *layout.RULES,
    *recompute.RULES,
    *activation_offload.RULES,
    *training.RULES,
    *optim.RULES,
    *data.RULES,
    *checkpoint.RULES,
    *faults.RULES,
)


def validate(config: RunConfig, world_size: int) -> None:
    """Raise ConfigError with all violations, if there are any."""
    found = violations(config, world_size)
    if found:
        raise ConfigError("\n".join(found))


def violations(config: RunConfig, world_size: int) -> list[str]:
    """All that is wrong with `config` on `world_size` ranks: one sentence each, with what to set."""
    return _violations(config, world_size, _RULES, {field.name for field in all_fields()})


def model_violations(config: RunConfig, world_size: int) -> list[str]:
    """The same for its model and layout alone, for who does not train."""
    fields = {field.name for field in all_fields() if field.section in ("model", "parallel")}
    return _violations(config, world_size, (*model.RULES, *layout.RULES), fields)


def _violations(config: RunConfig, world_size: int, rules: Iterable[Rule], fields: Container[str]) -> list[str]:
    bad = [item for item in out_of_range(config) if item.field in fields]
    bad_fields = {item.field for item in bad}
    messages = [item.message for item in bad]
    if world_size < 1:
        return [*messages, f"the world has {world_size} ranks; it must have at least 1"]
    for rule in rules:
        if bad_fields.isdisjoint(rule.needs.split()):
            messages += rule.check(config, world_size)
    return messages
