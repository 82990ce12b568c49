# SPDX-License-Identifier: Apache-2.0
"""The part of tools/inspect.py that knows checkpoints. Nothing of a checkpoint is executed, and no link followed."""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron_core.checkpoint.compare import compare_tensor, field_differences, structural_differences
from megatron_core.checkpoint.directory import read_manifest, step_directory
from megatron_core.checkpoint.find import find_newest
from megatron_core.checkpoint.list_steps import list_steps, split_step_path
from megatron_core.checkpoint.manifest import FILE_NAME, Manifest, TensorEntry
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.tensor_statistics import tensor_statistics
from megatron_core.checkpoint.verify import verify
from megatron_core.errors import CheckpointError, UserError
from tools.byte_progress import ByteProgress, size_text
from tools.text_table import text_table

DIFFERENT = DAMAGED = 1
BAD_INPUT = 2
MODEL_FIELDS = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "group_query_attention",
    "num_query_groups",
    "seq_length",
    "vocab_size",
    "normalization",
    "position_embedding_type",
)
LAYOUT_FIELDS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "num_virtual_stages_per_pipeline_rank",
    "context_parallel_size",
    "sequence_parallel",
)


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Flags of a checkpoint's inspection."""
    parser = argparse.ArgumentParser(
        prog="tools/inspect.py",
        description="Say what a checkpoint holds. Exit code: 0; 1 damaged, or different with --compare; 2 not usable.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("checkpoint", type=Path, help="a step_* directory, or that of a run: its steps; with a flag, its newest step")
    add("--tensors", action="store_true", help="list every tensor")
    add("--verify", action="store_true", help="read everything against its checksums")
    add("--compare", type=Path, metavar="OTHER", help="another checkpoint: which tensors and settings differ")
    add("--tensor", metavar="NAME", help="statistics of one tensor, such as model/layers.0.mlp.up.weight")
    return parser.parse_args(list(words))


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 1 damaged or different, 2 not usable."""
    arguments = parse_arguments(words)
    try:
        return _inspect(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return 130


def _inspect(arguments: argparse.Namespace) -> int:
    root, step = split_step_path(arguments.checkpoint)
    asked = arguments.tensors or arguments.verify or arguments.compare is not None or arguments.tensor is not None
    if step is None and not asked:
        return _show_steps(root)
    directory, manifest = _open(arguments.checkpoint)
    if arguments.tensor is not None:
        _show_tensor(directory, manifest, arguments.tensor)
    elif arguments.compare is None:
        _show_contents(directory, manifest)
    if arguments.tensors:
        _show_tensors(manifest)
    code = 0
    if arguments.verify:
        code = _verify(directory, manifest)
    if arguments.compare is not None:
        code = max(code, _compare(directory, manifest, *_open(arguments.compare)))
    return code


def _open(path: Path) -> tuple[Path, Manifest]:
    """A step by its directory, or the newest usable one of a run's."""
    root, step = split_step_path(path)
    if step is not None:
        return step_directory(root, step), read_manifest(root, step)
    found = find_newest(root)
    for line in found.passed_over:
        print(f"passed over: {line}", file=sys.stderr)
    if found.manifest is None:
        raise CheckpointError(f"{root} {'holds no usable checkpoint' if root.is_dir() else 'does not exist'}")
    return step_directory(root, found.manifest.step), found.manifest


def _show_steps(root: Path) -> int:
    steps = list_steps(root)
    rows = [
        (
            str(status.step),
            status.status,
            size_text(status.nbytes),
            "-" if status.saved_at is None else _date(status.saved_at),
            " ".join(status.sections),
        )
        for status in steps
    ]
    print(root)
    print("\n".join(text_table(("step", "status", "size", "saved", "sections"), rows, right=("step", "size"))))
    for status in steps:
        if status.problem:
            print(f"{status.status}: {status.problem}")
    return DAMAGED if any(status.status == "damaged" for status in steps) else 0


def _show_contents(directory: Path, manifest: Manifest) -> None:
    size = sum(file.size for file in manifest.files)
    saved = _date(os.lstat(directory / FILE_NAME).st_mtime)
    print(f"{directory}: step {manifest.step}, saved {saved}, {size_text(size)} in {len(manifest.files)} files")
    print(f"model: {_fields(manifest.config, 'model', MODEL_FIELDS)}")
    print(f"layout that wrote it: {_fields(manifest.config, 'parallel', LAYOUT_FIELDS)}")
    for key in sorted(manifest.state):
        print(f"state: {json.dumps(key)[1:-1]} = {json.dumps(manifest.state[key])}")
    sections: dict[str, list[TensorEntry]] = {}
    for entry in manifest.tensors:
        sections.setdefault(entry.name.partition("/")[0], []).append(entry)
    rows = [
        (
            name,
            f"{len(entries):,}",
            f"{sum(entry.nbytes // entry.itemsize for entry in entries):,}",
            ", ".join(sorted({entry.dtype for entry in entries})),
            size_text(sum(entry.nbytes for entry in entries)),
        )
        for name, entries in sorted(sections.items())
    ]
    header = ("section", "tensors", "elements", "dtype", "size")
    print("\n".join(text_table(header, rows, right=("tensors", "elements", "size"))))


def _fields(config: Mapping[str, Any], section: str, names: Sequence[str]) -> str:
    """Those of a section's fields that are set; nothing vouches for what a config holds."""
    fields = config.get(section)
    found = {name: fields[name] for name in names if name in fields} if isinstance(fields, Mapping) else {}
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in found.items() if value is not None) or "not said"


def _show_tensors(manifest: Manifest) -> None:
    rows = [
        (
            entry.name,
            entry.dtype,
            " x ".join(map(str, entry.shape)) or "scalar",
            size_text(entry.nbytes),
            str(len(entry.pieces)),
        )
        for entry in manifest.tensors
    ]
    print("\n".join(text_table(("tensor", "dtype", "shape", "size", "pieces"), rows, right=("size", "pieces"))))


def _verify(directory: Path, manifest: Manifest) -> int:
    total = sum(entry.nbytes for entry in manifest.tensors)
    started = time.monotonic()
    with ByteProgress(f"verifying step {manifest.step}", total) as progress:
        damages = verify(directory, manifest, progress)
    seconds = time.monotonic() - started
    for damage in damages:
        more = f" and {len(damage.tensors) - 3} more" if len(damage.tensors) > 3 else ""
        print(f"DAMAGED: {damage.problem} (holds {', '.join(damage.tensors[:3])}{more})")
    verdict = f"{len(damages)} damaged places" if damages else "undamaged"
    print(f"verified {directory}: {verdict}; {size_text(total)} read in {seconds:.1f} s")
    return DAMAGED if damages else 0


def _compare(directory: Path, manifest: Manifest, other: Path, others: Manifest) -> int:
    print(f"first  {directory}\nsecond {other}")
    lines = structural_differences(manifest, others)
    held = {entry.name: entry for entry in others.tensors}
    pairs = [
        (entry, held[entry.name])
        for entry in manifest.tensors
        if entry.name in held and entry.shape == held[entry.name].shape
    ]
    differing = []
    with (
        CheckpointReader(directory, manifest) as a,
        CheckpointReader(other, others) as b,
        ByteProgress("comparing", sum(entry.nbytes for entry, _ in pairs)) as progress,
    ):
        for entry, twin in pairs:
            found = compare_tensor(a, b, entry, twin)
            progress(entry.nbytes)
            if found.unequal:
                differing.append(found)
    for line in lines:
        print(f"tensor {line}")
    if differing:
        header = ("tensor", "unequal", "elements", "max |a-b|", "max relative")
        rows = [
            (d.name, f"{d.unequal:,}", f"{d.elements:,}", f"{d.max_abs:.3g}", f"{d.max_rel:.3g}") for d in differing
        ]
        print("\n".join(text_table(header, rows, right=header[1:])))
    settings = [f"state {line}" for line in field_differences(manifest.state, others.state)]
    settings += [f"config {line}" for line in field_differences(manifest.config, others.config)]
    for line in settings:
        print(line)
    print(
        f"{len(pairs) - len(differing)} tensors equal, {len(differing)} differ in values, {len(lines)} in shape, dtype "
        f"or presence; {len(settings)} fields of state and config differ"
    )
    return DIFFERENT if lines or differing or settings else 0


def _show_tensor(directory: Path, manifest: Manifest, name: str) -> None:
    entry = next((entry for entry in manifest.tensors if entry.name == name), None)
    if entry is None:
        ending = [found.name for found in manifest.tensors if found.name.endswith(f"/{name}")]
        known = f"; there is {', '.join(ending)}" if ending else "; --tensors lists all"
        raise CheckpointError(f"{directory} holds no tensor {name!a}{known}")
    with CheckpointReader(directory, manifest) as reader:
        found = tensor_statistics(reader, entry)
    print(f"{name}: {entry.dtype}, shape {entry.shape}, {size_text(entry.nbytes)} in {len(entry.pieces)} pieces")
    print(f"min {found.least:.6g}   max {found.largest:.6g}   mean {found.mean:.6g}   std {found.std:.6g}")
    print(f"norm {found.norm:.6g}   zeros {found.zeros:,} of {found.elements:,}")
    print(f"not finite: {found.nans:,} NaN, {found.infinities:,} infinite")
    print("first values: " + " ".join(f"{value:.6g}" for value in found.first_values))


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
