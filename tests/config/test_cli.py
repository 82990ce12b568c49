# SPDX-License-Identifier: Apache-2.0
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_core.config.cli import parse
from megatron_core.config.yaml_file import dump_yaml
from megatron_core.errors import ConfigError

ROOT = Path(__file__).parents[2]
BASE = {
    "num-layers": "--num-layers 4",
    "hidden-size": "--hidden-size 64",
    "num-attention-heads": "--num-attention-heads 8",
    "seq-length": "--seq-length 32",
    "max-position-embeddings": "--max-position-embeddings 32",
    "micro-batch-size": "--micro-batch-size 2",
    "lr": "--lr 1e-3",
    "train-iters": "--train-iters 1000",
    "mock-data": "--mock-data",
    "vocab-size": "--vocab-size 100",
}
MINIMAL = shlex.split(" ".join(BASE.values()))


def public_flags():
    text = (Path(__file__).parents[1] / "fixtures" / "public_script_flags.txt").read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def command_line(entry):
    """The base command with the flag of `entry` in it, without the words in brackets."""
    _, rest = entry.split(" ", 1)
    flag, _, context = rest.partition(" | ")
    words = shlex.split(context)
    dropped = [word.strip("[]") for word in words if word.startswith("[")]
    base = " ".join(text for name, text in BASE.items() if name not in dropped)
    return shlex.split(base) + [word for word in words if not word.startswith("[")] + shlex.split(flag)


@pytest.mark.parametrize("entry", public_flags())
def test_flags_of_public_scripts_are_accepted_or_not_yet_built(entry):
    argv = command_line(entry)
    try:
        assert parse([*argv, "--print-config"], checkpoint_model=lambda load, step: {}).print_config
    except ConfigError as error:
        flag = entry.split()[1]
        assert str(error).startswith("not yet: "), entry
        assert flag in str(error)


def test_a_whole_public_script_is_accepted():
    script = """
        --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048
        --attention-backend auto --micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375
        --train-iters 500000 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.006
        --clip-grad 1.0 --fp16 --lr 6.0e-5 --lr-decay-style cosine --min-lr 6.0e-6 --lr-warmup-fraction .001
        --lr-decay-iters 430000 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16
        --data-path corpus_text_document --vocab-file vocab.json --merge-file merges.txt --split 949,50,1
        --log-interval 100 --save-interval 10000 --eval-interval 1000 --save out --load out --eval-iters 10
        --tensorboard-dir out/tensorboard
    """
    config = parse(shlex.split(script), 128).config
    assert config.training.rampup_batch_size == (16, 16, 5859375)
    assert config.optim.precision == "fp16"
    assert config.model.gelu == "tanh"
    assert (config.checkpoint.load, config.checkpoint.save_interval) == ("out", 10000)


def test_the_list_of_public_flags_is_the_whole_one():
    assert len({entry.split()[1] for entry in public_flags()}) > 160


@pytest.mark.parametrize("launched", [None, 8])
def test_a_printed_config_reproduces_the_run(tmp_path, launched):
    argv = [*MINIMAL, "--sequence-parallel", "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"]
    argv += shlex.split("--num-layers-per-virtual-pipeline-stage 1 --swiglu --vocab-file a --merge-file b")
    argv += ["--profile-ranks", "0", "1"]
    first = parse([*argv, "--print-config"], launched)
    (tmp_path / "run.yaml").write_text(dump_yaml(first.config))
    again = parse(["--config", str(tmp_path / "run.yaml")], first.world_size)
    assert again.config == first.config
    assert not again.print_config
    assert first.config.parallel.pipeline_schedule == "interleaved"
    assert first.config.data.tokenizer_type == "GPT2BPETokenizer"


def test_flags_override_the_file_which_overrides_defaults(tmp_path):
    (tmp_path / "run.yaml").write_text("model: {swiglu: true, num_layers: 7, kv_channels: 4}\noptim: {bf16: true}\n")
    argv = [word for word in MINIMAL if word not in ("--num-layers", "4")]
    config = parse([*argv, "--no-swiglu", "--config", str(tmp_path / "run.yaml"), "--kv-channels", "None"]).config
    assert (config.model.swiglu, config.model.num_layers, config.optim.bf16) == (False, 7, True)
    assert config.model.kv_channels == 64 // 8
    assert config.optim.adam_eps == 1e-8


def test_all_problems_come_at_once():
    argv = [*MINIMAL, *shlex.split("--offload-modules --num-experts 8 --made-up --global-batch-size 3 --fp16 --bf16")]
    with pytest.raises(ConfigError) as error:
        parse(argv)
    assert str(error.value).splitlines() == [
        "5 problems in the configuration:",
        "  - unknown flag --made-up (see --help)",
        "  - --num-experts: mixture-of-experts layers are not part of this framework: train a dense model",
        "  - not yet: --offload-modules",
        "  - --global-batch-size 3 is not a multiple of --micro-batch-size 2 x 1 data-parallel ranks = 2: set 2 or 4",
        "  - --fp16 and --bf16 exclude each other: choose one precision",
    ]


def test_unreadable_values_are_not_followed_by_complaints_about_defaults(tmp_path):
    with pytest.raises(ConfigError, match=r"^--num-layers is 'four', not a whole number$"):
        parse([*MINIMAL, "--num-layers", "four"])
    (tmp_path / "run.yaml").write_text("model: {num_layers: four}")
    argv = [word for word in MINIMAL if word not in ("--num-layers", "4")]
    with pytest.raises(ConfigError, match=r"^.*run.yaml: model.num_layers is 'four', not a whole number$"):
        parse([*argv, "--config", str(tmp_path / "run.yaml")])


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read --config .*absent.yaml: .*No such file"):
        parse([*MINIMAL, "--config", str(tmp_path / "absent.yaml")])
    with pytest.raises(ConfigError, match="--config needs a value: TEXT"):
        parse([*MINIMAL, "--config"])


def test_the_world_size():
    wide = [*MINIMAL, "--tensor-model-parallel-size", "2"]
    assert parse(MINIMAL).world_size == 1
    assert parse(wide, 8).config.training.global_batch_size == 2 * 4
    assert parse([*wide, "--print-config", "--world-size", "4"], 1).world_size == 4
    printed = parse([*wide, "--print-config"])
    assert printed.world_size == 2
    assert printed.notes == ("resolved for 2 ranks, the fewest that hold the model; --world-size N for more",)
    with pytest.raises(ConfigError, match="1 ranks do not divide by tensor 2 x pipeline 1 = 2"):
        parse(wide)
    with pytest.raises(ConfigError, match="--world-size 4 but the launcher started 8 ranks"):
        parse([*wide, "--world-size", "4"], 8)
    with pytest.raises(ConfigError, match="--world-size 4 starts no ranks"):
        parse([*wide, "--world-size", "4"])
    assert parse([*MINIMAL, "--world-size", "1"]).world_size == 1
    with pytest.raises(ConfigError, match="the world has 0 ranks"):
        parse([*MINIMAL, "--world-size", "0"])


def test_a_dry_run_needs_no_ranks():
    wide = [*MINIMAL, "--tensor-model-parallel-size", "2", "--dry-run"]
    assert (parse(wide).world_size, parse(wide).dry_run, parse(wide).rank) == (2, True, None)
    parsed = parse([*wide, "--world-size", "8", "--rank", "5"])
    assert (parsed.world_size, parsed.rank) == (8, 5)
    assert not parse(MINIMAL).dry_run
    with pytest.raises(ConfigError, match="--rank names a rank of --dry-run"):
        parse([*MINIMAL, "--rank", "0"])


def test_the_model_of_a_checkpoint_wins_over_flags_and_file(tmp_path):
    (tmp_path / "run.yaml").write_text("model: {hidden_size: 64, swiglu: true}\n")
    argv = shlex.split(
        f"--config {tmp_path}/run.yaml --num-layers 4 --seq-length 32 --micro-batch-size 2 --lr 1e-3 --train-iters 9 "
        "--mock-data --vocab-size 100 --use-checkpoint-args --load out --ckpt-step 7"
    )
    asked = []

    def checkpoint_model(load, step):
        asked.append((load, step))
        saved = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "swiglu": False}
        return {**saved, "max_position_embeddings": 32}

    parsed = parse(argv, checkpoint_model=checkpoint_model)
    model = parsed.config.model
    assert asked == [("out", 7)]
    assert (model.num_layers, model.num_attention_heads, model.swiglu, model.seq_length) == (2, 8, False, 32)
    assert model.ffn_hidden_size == 4 * 64  # follows from what the checkpoint says
    assert parsed.notes == (
        "--use-checkpoint-args takes from the checkpoint: --swiglu False instead of True, --num-layers 2 instead of 4",
    )


def test_a_checkpoint_is_read_for_its_model_only_where_it_is_asked_for():
    wanted = [*MINIMAL, "--use-checkpoint-args", "--load", "out"]
    absent = parse(wanted, checkpoint_model=lambda load, step: {})
    assert absent.config.model.num_layers == 4
    assert absent.notes == ("--use-checkpoint-args: no checkpoint in --load out; flags and file say what the model is",)
    with pytest.raises(ConfigError, match="this command reads no checkpoint; leave it out"):
        parse(wanted)
    with pytest.raises(ConfigError, match=r"^--use-checkpoint-args: set --load DIR"):
        parse([*MINIMAL, "--use-checkpoint-args"], checkpoint_model=lambda load, step: pytest.fail("nothing to read"))
    parse([*MINIMAL, "--load", "out"], checkpoint_model=lambda load, step: pytest.fail("not asked for"))


def test_what_has_no_effect_without_save_and_load_is_said():
    assert parse([*MINIMAL, *shlex.split("--save-interval 10 --no-load-optim")]).notes == (
        "without effect, since nothing is saved without --save DIR: --save-interval",
        "without effect, since nothing is loaded without --load DIR: --no-load-optim",
    )


def test_help_names_sections_flags_and_meanings(capsys):
    with pytest.raises(SystemExit) as end:
        parse(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "model options" in shown
    assert "--tensor-model-parallel-size INT" in shown
    assert "Decoupled weight decay." in shown
    assert "--print-config" in shown


def test_parsing_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from megatron_core.config.cli import parse\n"
        f"parse({MINIMAL!r})\n"
        "print([m for m in ('torch', 'tyro', 'numpy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
