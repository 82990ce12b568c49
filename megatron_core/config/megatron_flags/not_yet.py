# SPDX-License-Identifier: Apache-2.0
"""Megatron flags whose feature this framework will have but does not have yet. Who builds one takes its names out."""

from collections.abc import Mapping

NOT_YET: Mapping[str, str] = {
    "offloading to host memory": """
        activation-offload-fraction checkpoint-in-cpu cpu-offloading-num-layers
        cpu-offloading-retain-pinned-cpu-buffers cpu-optimizer delay-offload-until-cuda-graph
        delta-offload-bytes-across-pp-ranks fine-grained-activation-offloading
        fine-grained-offloading-max-inflight-offloads min-offloaded-tensor-size no-pin-cpu-grads no-pin-cpu-params
        offload-modules optimizer-cpu-offload optimizer-offload-fraction overlap-cpu-optimizer-d2h-h2d
        use-torch-optimizer-for-cpu-offload
    """,
}
"""What is missing -> the flags that ask for it."""

NOT_YET_VALUES: Mapping[tuple[str, str], str] = {
    ("transformer-impl", "transformer_engine"): "Transformer Engine's modules",
}
"""(flag, value) -> what is missing, where other values of the flag are fine or refused."""
