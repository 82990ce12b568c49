# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/convert_checkpoint.py that know Megatron-LM's checkpoints."""

import argparse
from functools import partial
from pathlib import Path

import torch

from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.megatron.import_model import foreign_model, padding_note, vocabulary_question
from megatron_core.checkpoint.megatron.legacy_write import export_bytes, export_legacy
from megatron_core.checkpoint.megatron.open_megatron import open_megatron
from megatron_core.checkpoint.megatron.opened import OpenedMegatron
from megatron_core.checkpoint.megatron.target import Target
from megatron_core.checkpoint.plain import quote
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.checkpoint.write_foreign import write_checkpoint
from megatron_core.config.data import DataConfig, TokenizerType
from megatron_core.data.build_tokenizer import build_tokenizer
from megatron_core.errors import CheckpointError
from tools.byte_progress import ByteProgress, size_text
from tools.verify_megatron import require_same_logits

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NOT_IMPORTED = """\
weights alone: optimizer and random numbers stay behind. Train on with --finetune (from step 0) or --no-load-optim
  (steps go on). The old run's data order cannot be continued: samples are cut and shuffled otherwise here, so that the
  data is read from its start, and some of it for a second time."""
_VERIFIED = (
    "verified: logits of {} prompts differ by at most {:.2g} from those over Megatron's own matrices, up to {:.3g}"
)


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """import-megatron and export-megatron."""
    command = commands.add_parser("import-megatron", help="a checkpoint of Megatron-LM as one of ours")
    command.add_argument("source", type=Path, metavar="SAVE", help="its --save directory, or an iteration's in it")
    command.add_argument("--output", type=Path, required=True, help="directory of a run: gets a step_* directory")
    command.add_argument("--vocab-size", type=int, help="true number of tokens; default: what the tokenizer has")
    command.add_argument("--tokenizer-type", choices=TokenizerType.__args__, help="as in training")
    for name in ("--tokenizer-model", "--vocab-file", "--merge-file"):
        command.add_argument(name, help="as in training")
    _add_no_verify(command)
    command.set_defaults(run=run_import)
    command = commands.add_parser("export-megatron", help="a checkpoint of ours for Megatron-LM (--ckpt-format torch)")
    command.add_argument("checkpoint", type=Path, metavar="STEP_DIR", help="a step_* directory, or a run's")
    command.add_argument("--output", type=Path, required=True, metavar="SAVE", help="to be loaded with --load SAVE")
    command.add_argument("--target-tensor-parallel-size", type=int, default=1, help="default: 1")
    command.add_argument("--target-pipeline-parallel-size", type=int, default=1, help="default: 1")
    command.add_argument("--target-num-layers-per-virtual-pipeline-stage", type=int, help="default: one chunk a rank")
    command.add_argument(
        "--target-transformer-impl",
        choices=("transformer_engine", "local"),
        default="transformer_engine",
        help="--transformer-impl of the run that loads it; default: transformer_engine, as there",
    )
    command.add_argument("--dtype", choices=_DTYPES, help="of the weights written; default: as they are stored")
    _add_no_verify(command)
    command.set_defaults(run=run_export)


def _add_no_verify(command: argparse.ArgumentParser) -> None:
    command.add_argument("--no-verify", action="store_true", help="do not compare logits, which takes ours in memory")


def run_import(arguments: argparse.Namespace) -> None:
    """Raises UserError."""
    opened = open_megatron(arguments.source)
    print(opened.origin)
    if opened.inert:
        names = ", ".join(quote(name)[1:-1] for name in sorted(opened.inert)[:20])
        print(f"note: named in its pickles, not called and not needed: {names}")
    data, vocab_size = _tokenizer(arguments, opened)
    if note := padding_note(opened, vocab_size):
        print(f"note: {note}")
    foreign = foreign_model(opened, data, vocab_size)
    check = None if arguments.no_verify else partial(_verify, theirs=opened)
    with ByteProgress("importing", 2 * foreign.nbytes) as progress:
        manifest = write_checkpoint(foreign, arguments.output, step=opened.iteration, report=progress, check=check)
    size = size_text(foreign.nbytes)
    print(f"wrote {step_directory(arguments.output, manifest.step)}: {size}, read back undamaged")
    print(_NOT_IMPORTED)


def run_export(arguments: argparse.Namespace) -> None:
    """Raises UserError."""
    target = Target(
        tensor_model_parallel_size=arguments.target_tensor_parallel_size,
        pipeline_model_parallel_size=arguments.target_pipeline_parallel_size,
        num_layers_per_virtual_pipeline_stage=arguments.target_num_layers_per_virtual_pipeline_stage,
        transformer_engine=arguments.target_transformer_impl == "transformer_engine",
    )
    dtype = _DTYPES.get(arguments.dtype)
    with StoredModel(arguments.checkpoint, dtype) as stored:
        verify = partial(_verify, stored.directory, stored.manifest, rounded=dtype)
        check = None if arguments.no_verify else verify
        with ByteProgress("exporting", export_bytes(stored, target)) as progress:
            directory = export_legacy(stored, arguments.output, target, report=progress, check=check)
        if stored.model.vocabulary < target.padded_vocab_size(stored.model):
            print("note: rows of padding are zero; Megatron-LM has them in its softmax: its losses are a little larger")
    print(f"wrote {directory}, compared with {stored.directory} to the bit")
    print("load it with --use-checkpoint-args and --no-load-optim --no-load-rng, or --finetune: it holds weights alone")


def _verify(step: Path, manifest: Manifest, theirs: OpenedMegatron, rounded: torch.dtype | None = None) -> None:
    """Compare logits before anything gets its name; says what was found."""
    print(f"verified: {require_same_logits(step, manifest, theirs, rounded)}")


def _tokenizer(arguments: argparse.Namespace, opened: OpenedMegatron) -> tuple[DataConfig, int]:
    """The tokenizer of the flags, or ids alone, and the true size of the vocabulary."""
    names = ("tokenizer_type", "tokenizer_model", "vocab_file", "merge_file")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if not given or given == {"tokenizer_type": "NullTokenizer"}:
        if arguments.vocab_size is None:
            raise CheckpointError(vocabulary_question(opened))
        return DataConfig(tokenizer_type="NullTokenizer"), arguments.vocab_size
    data = DataConfig(**given)
    tokenizer = build_tokenizer(data)
    if arguments.vocab_size is not None and arguments.vocab_size < tokenizer.vocab_size:
        raise CheckpointError(f"--vocab-size {arguments.vocab_size}: the tokenizer has {tokenizer.vocab_size} tokens")
    return data, arguments.vocab_size or tokenizer.vocab_size
