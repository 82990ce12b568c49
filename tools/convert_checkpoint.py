#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a checkpoint from others: their mean, or what another program has or shall have.

tools/convert_checkpoint.py average RUN/step_00008000 RUN/step_00009000 RUN/step_00010000 --output AVERAGED
    the weighted mean of their weights as AVERAGED/step_00010000, to be loaded with --no-load-optim or --finetune
tools/convert_checkpoint.py import-hf DIR --output RUN
    a model of transformers (safetensors) as RUN/step_00000000, to be trained on with --load RUN --finetune
tools/convert_checkpoint.py export-hf RUN/step_00010000 --output DIR
    a checkpoint of ours as a model that transformers and vLLM load
tools/convert_checkpoint.py import-megatron SAVE --output RUN --vocab-size 50257
    a checkpoint of Megatron-LM (torch or torch_dist, any layout) as RUN/step_*; nothing that its pickles name is called
tools/convert_checkpoint.py export-megatron RUN/step_00010000 --output SAVE --target-tensor-parallel-size 8
    a checkpoint of ours for Megatron-LM (--ckpt-format torch), at any layout of its
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# The folder of a script is on the path too, where tools/inspect.py hides the standard module of that name.

from megatron_core.checkpoint.average import average, open_sources, work_bytes
from megatron_core.checkpoint.compare import field_differences
from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.list_steps import split_step_path
from megatron_core.errors import CheckpointError
from tools import convert_hf, convert_megatron
from tools.byte_progress import ByteProgress, size_text
from tools.run_command import run_command


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """A subcommand and its flags; `run` is the function that does it."""
    parser = argparse.ArgumentParser(
        prog="tools/convert_checkpoint.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("average", help="weighted mean of the weights of several checkpoints")
    command.add_argument("steps", nargs="+", type=Path, metavar="STEP_DIR", help="a step_* directory")
    command.add_argument("--output", type=Path, required=True, help="directory for the new step_* directory")
    command.add_argument("--weights", nargs="+", type=float, help="one for each STEP_DIR; default: equal ones")
    command.set_defaults(run=run_average)
    convert_hf.add_commands(commands)
    convert_megatron.add_commands(commands)
    return parser.parse_args(list(words))


def run_average(arguments: argparse.Namespace) -> None:
    """Write the mean. Raises CheckpointError."""
    steps = []
    for path in arguments.steps:
        root, step = split_step_path(path)
        if step is None:
            raise CheckpointError(f"{path} is no step_* directory")
        steps.append((root, step))
    sources = open_sources(steps, arguments.weights)
    newest = sources[-1]
    for source in sources:
        print(f"{source.share:.6g} x {source.directory}")
    for source in sources[:-1]:
        theirs, ours = source.manifest.config.get("model"), newest.manifest.config.get("model")
        for line in field_differences({"model": theirs}, {"model": ours}):
            print(f"note: {line}; first: {source.directory}, second: {newest.directory}")
    with ByteProgress("averaging", work_bytes(sources)) as progress:
        manifest = average(sources, arguments.output, progress)
    size = size_text(sum(file.size for file in manifest.files))
    sections = " and ".join(sorted({entry.name.partition("/")[0] for entry in manifest.tensors}))
    print(f"wrote {step_directory(arguments.output, manifest.step)}: {sections}, {size}, read back undamaged")


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 2 bad input, 130 interrupted."""
    arguments = parse_arguments(words)
    return run_command(lambda: arguments.run(arguments), interrupted="interrupted: nothing was written")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
