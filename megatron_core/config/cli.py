# SPDX-License-Identifier: Apache-2.0
"""The command line of a run: flags over a YAML file over defaults, checked and resolved, or one error with all faults.

Field values are read here and not by tyro, which makes the help: it stops at the first bad value, and importing it
costs a quarter of a second on each of the ranks that share a core.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_core.config.arguments import Argument, split_arguments
from megatron_core.config.fields import Field, all_fields, replace_fields
from megatron_core.config.idle import idle_settings
from megatron_core.config.megatron_flags.table import flag_table
from megatron_core.config.run import RunConfig
from megatron_core.config.translate import translate
from megatron_core.config.validate import violations
from megatron_core.config.values import ValueType, from_words
from megatron_core.config.yaml_file import YamlValues, read_yaml
from megatron_core.errors import ConfigError

_OWN: Mapping[str, ValueType] = {
    "config": ValueType(scalar=str),
    "print-config": ValueType(scalar=bool),
    "world-size": ValueType(scalar=int),
    "dry-run": ValueType(scalar=bool),
    "rank": ValueType(scalar=int),
}
"""Flags of the command itself, which are no part of the run's configuration."""

_HELP = """Train a GPT: flags override the YAML file of --config, which overrides the defaults.

--config FILE.yaml reads sections of fields; --print-config prints the resolved configuration as such a file and ends;
--dry-run takes one step of --rank R (unset: of the stage that needs most memory) without memory or GPU, tells what it
communicates and needs, and ends; --world-size N says for how many ranks, where no launcher does. Flags of Megatron-LM
scripts are accepted as docs/configuration.md lists."""


ModelReader = Callable[[str, int | None], Mapping[str, Any]]
"""Gives fields of the section model from the checkpoint that --load and --ckpt-step choose; empty: there is none."""


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """A command line understood."""

    config: RunConfig
    """Resolved for `world_size` ranks."""
    asked: RunConfig
    """The same as it was asked for, nothing derived yet."""
    world_size: int
    print_config: bool
    """Print the configuration (`dump_yaml`) and end."""
    dry_run: bool
    """Take one step without memory and end."""
    rank: int | None
    """Of --dry-run; None: the planner's choice."""
    notes: tuple[str, ...]
    """What to tell the person once: flags read under another name, flags without effect."""


def parse(argv: Sequence[str], world_size: int | None = None, *, checkpoint_model: ModelReader | None = None) -> Parsed:
    """Read the words after the program's name; `world_size` is the launcher's, None where there is none.

    `checkpoint_model` is asked with --use-checkpoint-args, which is an error without it; what it raises comes through.
    Raises ConfigError with every fault of flags, file and configuration at once. Prints the help and exits on --help.
    """
    arguments = split_arguments(argv)
    if any(argument.name in ("h", "help") for argument in arguments):
        _print_help()
    own, problems = _own_values([argument for argument in arguments if argument.name in _OWN])
    fields = all_fields()
    told = translate([argument for argument in arguments if argument.name not in _OWN], fields, flag_table())
    file = _read_file(own.get("config"), fields)
    given = {**file.values, **told.values}
    config = replace_fields(RunConfig(), given)
    problems += [*file.problems, *told.problems]
    readable = not (told.unreadable or file.problems)
    checkpoint_note: tuple[str, ...] = ()
    if readable and config.checkpoint.use_checkpoint_args and config.checkpoint.load is not None:
        config, checkpoint_note = _with_checkpoint_model(config, config.checkpoint.load, checkpoint_model, given)
    print_config, dry_run, rank = bool(own.get("print-config")), bool(own.get("dry-run")), own.get("rank")
    if rank is not None and not dry_run:
        problems.append("--rank names a rank of --dry-run: add that, or leave it out")
    world, world_note = _world_size(own.get("world-size"), world_size, print_config or dry_run, config)
    if readable:
        problems += violations(config, world)
    if problems:
        raise ConfigError(_message(problems))
    notes = (*told.notes, *checkpoint_note, *idle_settings(config.checkpoint), *world_note)
    resolved = config.resolve(world)
    return Parsed(
        config=resolved,
        asked=config,
        world_size=world,
        print_config=print_config,
        dry_run=dry_run,
        rank=rank if isinstance(rank, int) else None,
        notes=notes,
    )


def _own_values(arguments: Sequence[Argument]) -> tuple[Mapping[str, object], list[str]]:
    values: dict[str, object] = {}
    problems = []
    for argument in arguments:
        try:
            values[argument.name] = from_words(_OWN[argument.name], argument.values)
        except ValueError as error:
            problems.append(f"{argument.spelled} {error}")
    return values, problems


def _read_file(path: object, fields: Sequence[Field]) -> YamlValues:
    if path is None:
        return YamlValues({}, ())
    try:
        text = Path(str(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --config {path}: {error}") from error
    return read_yaml(text, str(path), fields)


def _with_checkpoint_model(
    config: RunConfig, load: str, read: ModelReader | None, given: Mapping[Field, object]
) -> tuple[RunConfig, tuple[str, ...]]:
    """`config` with the model of the checkpoint, and what it sets otherwise than flags and file, which were `given`."""
    if read is None:
        raise ConfigError("--use-checkpoint-args: this command reads no checkpoint; leave it out")
    saved = read(load, config.checkpoint.ckpt_step)
    if not saved:
        return config, (f"--use-checkpoint-args: no checkpoint in --load {load}; flags and file say what the model is",)
    adopted = dataclasses.replace(config, model=dataclasses.replace(config.model, **saved))
    changed = [
        f"--{field.flag} {saved[field.name]} instead of {value}"
        for field, value in given.items()
        if field.section == "model" and field.name in saved and saved[field.name] != value
    ]
    return adopted, (f"--use-checkpoint-args takes from the checkpoint: {', '.join(changed)}",) if changed else ()


def _world_size(
    asked: object, launched: int | None, starts_none: bool, config: RunConfig
) -> tuple[int, tuple[str, ...]]:
    """Ranks of the run: --world-size, else the launcher's; without either, where none are started, as few as hold the
    model."""
    if isinstance(asked, int):
        # A world of no ranks or fewer is said by the checks of the whole configuration.
        if asked > 0 and asked != (launched or 1) and not starts_none:
            if launched is None:
                raise ConfigError(
                    f"--world-size {asked} starts no ranks: add --print-config or --dry-run, or start them with "
                    f"torchrun --nproc-per-node {asked}"
                )
            raise ConfigError(f"--world-size {asked} but the launcher started {launched} ranks: leave --world-size out")
        return asked, ()
    if launched is not None:
        return launched, ()
    smallest = max(config.parallel.model_parallel_size, 1)
    if starts_none and smallest > 1:
        return smallest, (f"resolved for {smallest} ranks, the fewest that hold the model; --world-size N for more",)
    return 1, ()


def _message(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return "\n".join([f"{len(problems)} problems in the configuration:", *(f"  - {problem}" for problem in problems)])


def _print_help() -> None:
    import tyro  # a quarter of a second that only --help should pay

    tyro.cli(RunConfig, args=["--help"], description=_HELP, config=(tyro.conf.OmitArgPrefixes,))
