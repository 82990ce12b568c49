# SPDX-License-Identifier: Apache-2.0
"""Rules about recomputed activations: every setting belongs to one granularity, and each module to the model."""

from collections.abc import Iterator, Mapping

from megatron_core.config.parallel import RECOMPUTE_MODULES, ParallelConfig
from megatron_core.config.rules.rule import Rule
from megatron_core.config.run import RunConfig

_ABSENT: Mapping[str, str] = {
    "moe": "mixture-of-experts layers are",
    "moe_act": "mixture-of-experts layers are",
    "shared_experts": "mixture-of-experts layers are",
    "mla_up_proj": "latent attention is",
}
"""Megatron's other modules and what they belong to."""


def _granularity(config: RunConfig, world: int) -> Iterator[str]:
    parallel = config.parallel
    granularity = parallel.recompute_granularity
    if granularity != "full":
        for name in ("recompute_method", "recompute_num_layers"):
            value = getattr(parallel, name)
            if value is not None:
                yield f"--{name.replace('_', '-')} {value} needs --recompute-granularity full, not {_said(granularity)}"
    default = ParallelConfig().recompute_modules
    if granularity != "selective" and parallel.recompute_modules != default:
        yield (
            f"--recompute-modules {' '.join(parallel.recompute_modules)} needs --recompute-granularity selective, "
            f"not {_said(granularity)}"
        )


def _said(granularity: str | None) -> str:
    return granularity or "none"


def _modules(config: RunConfig, world: int) -> Iterator[str]:
    modules = config.parallel.recompute_modules
    if not modules:
        yield f"--recompute-modules names none: choose among {', '.join(RECOMPUTE_MODULES)}"
    for module in modules:
        if module in _ABSENT:
            yield f"--recompute-modules {module}: {_ABSENT[module]} not part of this framework: leave it out"
        elif module not in RECOMPUTE_MODULES:
            yield f"--recompute-modules {module} is unknown: choose among {', '.join(RECOMPUTE_MODULES)}"


RULES = (Rule(_granularity, "recompute_num_layers"), Rule(_modules))
