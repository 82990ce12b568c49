# SPDX-License-Identifier: Apache-2.0
"""Megatron flags whose feature this framework will have but does not have yet. Who builds one takes its names out."""

from collections.abc import Mapping

NOT_YET: Mapping[str, str] = {
    "offloading the activations of parts of layers to host memory; --cpu-offloading-num-layers has whole layers": """
        activation-offload-fraction delay-offload-until-cuda-graph delta-offload-bytes-across-pp-ranks
        fine-grained-activation-offloading fine-grained-offloading-max-inflight-offloads offload-modules
    """,
}
"""What is missing -> the flags that ask for it."""

NOT_YET_VALUES: Mapping[tuple[str, str], str] = {
    ("transformer-impl", "transformer_engine"): "Transformer Engine's modules",
}
"""(flag, value) -> what is missing, where other values of the flag are fine or refused."""
