# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/convert_checkpoint.py that know transformers' files."""

import argparse
from functools import partial
from pathlib import Path

import torch

from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.huggingface.export_model import export_bytes, export_model
from megatron_core.checkpoint.huggingface.families import FAMILIES
from megatron_core.checkpoint.huggingface.import_model import import_bytes, import_model, read_architecture
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.stored_model import StoredModel
from tools.byte_progress import ByteProgress, size_text
from tools.verify_logits import can_verify, require_same_logits

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """import-hf and export-hf."""
    command = commands.add_parser("import-hf", help="a directory of transformers as a checkpoint of ours")
    command.add_argument("directory", type=Path, metavar="DIR", help="config.json, safetensors, tokenizer files")
    command.add_argument("--output", type=Path, required=True, help="directory of a run: gets step_00000000, tokenizer")
    command.add_argument("--seq-length", type=int, help="of the samples to train on; default: all positions it has")
    _add_common(command)
    command.set_defaults(run=run_import)
    command = commands.add_parser("export-hf", help="a checkpoint of ours as a directory of transformers")
    command.add_argument("checkpoint", type=Path, metavar="STEP_DIR", help="a step_* directory, or a run's")
    command.add_argument("--output", type=Path, required=True, help="directory to be made")
    command.add_argument("--family", choices=FAMILIES, help="default: the first that computes what the model does")
    command.add_argument("--tokenizer-model", help="where the tokenizer's files are now, if not where they were")
    _add_common(command)
    command.set_defaults(run=run_export)


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dtype", choices=_DTYPES, help="of the weights written; default: as they are stored")
    command.add_argument(
        "--no-verify", action="store_true", help="do not compare logits with transformers', which takes both in memory"
    )


def run_import(arguments: argparse.Namespace) -> None:
    """Raises UserError."""
    source, output = arguments.directory, arguments.output
    architecture = read_architecture(source, arguments.seq_length)
    for note in architecture.notes:
        print(f"note: {note}")
    dtype = _dtype(arguments)
    with ByteProgress("importing", import_bytes(source, architecture, dtype)) as progress:
        manifest = import_model(
            source,
            output,
            architecture,
            dtype=dtype,
            report=progress,
            check=None if arguments.no_verify else partial(_verify, theirs=source, dtype=dtype),
        )
    size = size_text(sum(file.size for file in manifest.files))
    print(f"wrote {step_directory(output, 0)}: {architecture.family.name}, {size}, read back undamaged")
    tokenizer = manifest.config["data"]["tokenizer_model"]
    print(f"tokenizer: {tokenizer or 'none there, so ids are their own words (NullTokenizer)'}")


def run_export(arguments: argparse.Namespace) -> None:
    """Raises UserError."""
    dtype = _dtype(arguments)
    with StoredModel(arguments.checkpoint, dtype) as stored:
        total = export_bytes(stored, arguments.family)
        with ByteProgress("exporting", total) as progress:
            family = export_model(
                stored,
                arguments.output,
                family=arguments.family,
                tokenizer_model=arguments.tokenizer_model,
                report=progress,
                check=None
                if arguments.no_verify
                else lambda theirs: _verify(stored.directory, stored.manifest, theirs, dtype),
            )
    print(f"wrote {arguments.output}: {family.architecture}, {size_text(total)}")


def _dtype(arguments: argparse.Namespace) -> torch.dtype | None:
    return None if arguments.dtype is None else _DTYPES[arguments.dtype]


def _verify(step: Path, manifest: Manifest, theirs: Path, dtype: torch.dtype | None) -> None:
    """Compare logits before anything gets its name; says what was found."""
    if not can_verify():
        print("not verified: transformers is not installed (--no-verify says so beforehand)")
        return
    print(f"verified: {require_same_logits(step, manifest, theirs, dtype)}")
