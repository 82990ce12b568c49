# SPDX-License-Identifier: Apache-2.0
"""Published measurements as workloads: one row of a table in the schema of `split_validation.csv` each.

Which program made a row is read from its source: it decides what was overlapped, fused or sent twice, and is a fact
about code of that year, not a constant.
"""

import dataclasses
import math
import re
from collections.abc import Mapping

from megatron_core.config.model import ModelConfig
from megatron_core.config.parallel import ParallelConfig, ScheduleName
from megatron_core.errors import ConfigError
from megatron_core.planner.engine import (
    BLOOM_2022,
    DEEPSPEED_2021,
    DEEPSPEED_BF16,
    DEEPSPEED_EXAMPLES_2020,
    MEGATRON_2020,
    MEGATRON_2021,
    MEGATRON_2022,
    MEGATRON_CORE,
    Engine,
)
from megatron_core.planner.hardware import Hardware, hardware
from megatron_core.planner.stage_layers import stage_layers
from megatron_core.planner.workload import Recompute, Workload

Row = Mapping[str, str]
_SCHEDULES: dict[str, ScheduleName] = {
    "none": "1f1b",
    "1F1B": "1f1b",
    "interleaved 1F1B": "interleaved",
    "GPipe": "gpipe",
    "ZB-H1": "zero-bubble",
}


def row_hardware(row: Row) -> Hardware:
    """The cluster that a row was measured on. Raises ConfigError where it is not known."""
    return hardware(_text(row, "cluster_key")).with_device(_text(row, "gpu_key"))


def row_workload(row: Row) -> Workload:
    """The step that a row measured. Raises ConfigError with the reason where it cannot be planned."""
    _refuse(row)
    engine = row_engine(row)
    whole = {name: _whole(row, name) for name in ("layers", "hidden", "heads", "seq_len", "vocab", "tp", "pp", "dp")}
    kv_heads = _whole(row, "kv_heads") if row.get("kv_heads") else whole["heads"]
    chunks = _whole(row, "vpp") if row.get("vpp") else 1
    _refuse_sizes(whole, chunks)
    model = ModelConfig(
        num_layers=whole["layers"],
        hidden_size=whole["hidden"],
        num_attention_heads=whole["heads"],
        seq_length=whole["seq_len"],
        max_position_embeddings=whole["seq_len"],
        ffn_hidden_size=_whole(row, "ffn_hidden") if row.get("ffn_hidden") else None,
        group_query_attention=kv_heads != whole["heads"],
        num_query_groups=kv_heads,
        vocab_size=whole["vocab"],
        swiglu=row.get("mlp", "gelu") in ("swiglu", "gated"),
        untie_embeddings_and_output_weights=row.get("embeddings") == "untied",
        embed_layernorm="LayerNorm" in row.get("note", ""),
    )
    full_stages = -(-whole["layers"] // whole["pp"]) * (whole["pp"] - 1)
    last_short = (row.get("layer_partition") or "").startswith("uneven: last stage short")
    parallel = ParallelConfig(
        pipeline_model_parallel_size=whole["pp"],
        num_virtual_stages_per_pipeline_rank=chunks if chunks > 1 else None,
        decoder_last_pipeline_num_layers=whole["layers"] - full_stages if last_short else None,
    )
    micro_batch = _whole(row, "micro_batch")
    batch = _whole(row, "global_batch_seqs")
    schedule = row.get("schedule") or "none"
    return Workload(
        model=model,
        tp=whole["tp"],
        pp=whole["pp"],
        dp=whole["dp"],
        chunks=chunks,
        layers=stage_layers(model, parallel),
        schedule="interleaved" if chunks > 1 else _SCHEDULES[schedule],
        micro_batch=micro_batch,
        microbatches=max(1, round(batch / (micro_batch * whole["dp"]))),
        sequence_parallel=row.get("sequence_parallel") == "yes",
        recompute=Recompute(granularity=_recompute(row)),
        precision="fp16" if row["precision"] == "fp16" else "bf16",
        distributed_optimizer=row.get("zero_or_fsdp", "0").startswith("ZeRO-") and row["zero_or_fsdp"] != "ZeRO-0",
        overlap_grad_reduce=engine in (MEGATRON_2020, MEGATRON_CORE) or "ddp=torch" in row.get("note", ""),
        overlap_param_gather=engine is MEGATRON_CORE,
        optimizer_offload="CPU optimizer" in row.get("offload", ""),
        offload_gradients="gradients" in row.get("offload", ""),
        engine=engine,
    )


def row_engine(row: Row) -> Engine:
    """The program, from the source that a row names."""
    source = f"{row.get('source', '')} {row.get('family', '')}"
    if "DeepSpeed docs" in source:
        return DEEPSPEED_EXAMPLES_2020
    if "tr11-176B" in source:
        return BLOOM_2022
    if any(word in source for word in ("bigscience", "DeepSpeed", "2201.11990", "MT-NLG", "ZeRO")):
        return DEEPSPEED_BF16 if row.get("precision") == "bf16" else DEEPSPEED_2021
    if "2205.05198" in source:
        return MEGATRON_2022
    if "2104.04473" in source:
        shared = "non-interleaved" not in row.get("note", "") and "without scatter/gather" not in row.get("note", "")
        return MEGATRON_2021 if shared else _WITHOUT_SHARING
    if re.search(r"2020|DLPerf|1909\.08053", source):
        return MEGATRON_2020
    if "2021" in source:
        return MEGATRON_2021
    return MEGATRON_CORE


_MOST_LAYERS = 1000
_WITHOUT_SHARING = dataclasses.replace(
    MEGATRON_2021, name="Megatron-LM, 2021, without scatter/gather", shares_p2p=False
)


def _refuse(row: Row) -> None:
    """Raise ConfigError for what the planner has no model of."""
    zero = row.get("zero_or_fsdp", "0")
    if zero not in ("", "0", "ZeRO-0", "ZeRO-1", "ZeRO-2"):
        raise ConfigError(f"{zero} is not planned: weights that are gathered for each layer")
    if row.get("cp", "1") not in ("", "1"):
        raise ConfigError(f"context parallelism of {row['cp']} is not planned")
    if (precision := _text(row, "precision")) not in ("fp16", "bf16"):
        raise ConfigError(f"{precision} products are not planned")
    if (row.get("schedule") or "none") not in _SCHEDULES:
        raise ConfigError(f"no schedule {row['schedule']!r} here: {', '.join(_SCHEDULES)}")


def _refuse_sizes(whole: Mapping[str, int], chunks: int) -> None:
    """Raise ConfigError for sizes that no run has."""
    layers, pp, heads, tp = (whole[name] for name in ("layers", "pp", "heads", "tp"))
    if layers > _MOST_LAYERS:
        raise ConfigError(f"layers is {layers}, more than the {_MOST_LAYERS} that are planned")
    if pp * chunks > layers:
        raise ConfigError(f"{layers} layers cannot be split over {pp} pipeline ranks, {chunks} virtual stages each")
    if heads % tp or whole["hidden"] < heads:
        raise ConfigError(f"{heads} heads of hidden {whole['hidden']} cannot be shared out over tp {tp}")


def _recompute(row: Row) -> str | None:
    """Granularity. Raises ConfigError for one that is not known."""
    value = row.get("recompute") or "none"
    granularity = next((one for one in ("none", "selective", "full") if value.lower().startswith(one)), None)
    if granularity is None:
        raise ConfigError(f"recompute is {value}: none, selective or full are planned")
    return None if granularity == "none" else granularity


def _text(row: Row, name: str) -> str:
    """A word of a row. Raises ConfigError where it is missing."""
    if not row.get(name):
        raise ConfigError(f"{name} is missing")
    return row[name]


def _whole(row: Row, name: str) -> int:
    """A whole number of a row. Raises ConfigError."""
    try:
        value = float(row.get(name) or "missing")
    except ValueError:
        raise ConfigError(f"{name} is {row.get(name) or 'missing'}, and no number") from None
    if not math.isfinite(value) or value != int(value) or value < 1:
        raise ConfigError(f"{name} is {row[name]}: a whole number of at least 1 is needed")
    return int(value)
