# SPDX-License-Identifier: Apache-2.0
"""The layout of a legacy checkpoint that is to be written: which rank has which parameters, under which names. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from megatron_core.checkpoint.megatron.parameters import EMBEDDING, HEAD, Parameter
from megatron_core.config.model import ModelConfig
from megatron_core.errors import ConfigError

_LAYER = re.compile(r"decoder\.layers\.([0-9]+)\.(.+)")
_NORM_IN_LINEAR = (
    (re.compile(r"input_layernorm\.(\w+)"), r"self_attention.linear_qkv.layer_norm_\1"),
    (re.compile(r"pre_mlp_layernorm\.(\w+)"), r"mlp.linear_fc1.layer_norm_\1"),
)
_WITH_EXTRA_STATE = (
    *("self_attention.core_attention", "self_attention.linear_qkv", "self_attention.linear_proj"),
    *("mlp.linear_fc1", "mlp.linear_fc2"),
)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Sizes under Megatron's names."""

    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    num_layers_per_virtual_pipeline_stage: int | None = None
    """None: one chunk a rank."""
    transformer_engine: bool = True
    """Names of Transformer Engine's modules, Megatron's default; else those of --transformer-impl local."""

    def check(self, config: ModelConfig, wanted: Sequence[Parameter]) -> None:
        """Raise ConfigError where Megatron could not have this layout, with everything that is wrong."""
        tp, pp, layers = self.tensor_model_parallel_size, self.pipeline_model_parallel_size, config.num_layers
        per, problems = self.num_layers_per_virtual_pipeline_stage, []
        if tp < 1 or pp < 1 or (per is not None and per < 1):
            raise ConfigError("sizes of a layout are at least 1")
        if layers % (pp * (per or 1)):
            problems.append(f"{layers} layers do not make {pp} pipeline stages of chunks of {per or layers // pp} each")
        if per is not None and pp == 1:
            problems.append("virtual pipeline stages need --target-pipeline-parallel-size 2 or more")
        problems += [
            f"{parameter.name} {parameter.shape} cannot be cut for {tp} tensor-parallel ranks"
            for parameter in wanted
            if not parameter.name.startswith("decoder.layers.") or parameter.name.startswith("decoder.layers.0.")
            if not parameter.divides_by(tp)
        ]
        if config.num_attention_heads % tp or (config.query_groups % tp and tp % config.query_groups):
            problems.append(f"{config.num_attention_heads} heads in {config.query_groups} groups do not divide by {tp}")
        if problems:
            raise ConfigError("\n  ".join(["Megatron-LM has no such layout of this model:", *problems]))

    def num_chunks(self, num_layers: int) -> int:
        """Virtual stages of a rank."""
        per = self.num_layers_per_virtual_pipeline_stage
        return 1 if per is None else num_layers // (self.pipeline_model_parallel_size * per)

    def padded_vocab_size(self, config: ModelConfig) -> int:
        """As Megatron pads."""
        multiple = config.make_vocab_size_divisible_by * self.tensor_model_parallel_size
        return -(-config.vocabulary // multiple) * multiple

    def chunks_of(
        self, config: ModelConfig, wanted: Sequence[Parameter], pipeline_rank: int
    ) -> list[Mapping[str, Parameter]]:
        """For each chunk of a pipeline rank its parameters under the names in its file."""
        pp, vpp = self.pipeline_model_parallel_size, self.num_chunks(config.num_layers)
        per = config.num_layers // (pp * vpp)
        return [
            dict(self._chunk(config, wanted, stage=chunk * pp + pipeline_rank, stages=pp * vpp, per=per))
            for chunk in range(vpp)
        ]

    def empty_states(self, chunk: Mapping[str, Parameter]) -> list[str]:
        """Names under which Transformer Engine's modules save a state of their own, which is empty but in fp8."""
        layers = dict.fromkeys(name.split(".")[2] for name in chunk if name.startswith("decoder.layers."))
        if not self.transformer_engine:
            return []
        return [f"decoder.layers.{layer}.{name}._extra_state" for layer in layers for name in _WITH_EXTRA_STATE]

    def _chunk(
        self, config: ModelConfig, wanted: Sequence[Parameter], *, stage: int, stages: int, per: int
    ) -> Iterator[tuple[str, Parameter]]:
        first, last = stage == 0, stage == stages - 1
        for parameter in wanted:
            if match := _LAYER.fullmatch(parameter.name):
                local = int(match[1]) - stage * per
                if 0 <= local < per:
                    yield f"decoder.layers.{local}.{self._in_layer(match[2])}", parameter
            elif first if parameter.name.startswith("embedding.") else last:
                yield parameter.name, parameter
            if parameter.name == EMBEDDING and last and not (first or config.untie_embeddings_and_output_weights):
                yield HEAD, parameter

    def _in_layer(self, name: str) -> str:
        if self.transformer_engine:
            for pattern, replacement in _NORM_IN_LINEAR:
                name = pattern.sub(replacement, name) if pattern.fullmatch(name) else name
        return name
