# SPDX-License-Identifier: Apache-2.0
"""What the program that runs a layout does behind the scenes: facts about code, not about sizes or machines.

The planner plans for this project's own program. Published rows were measured with others, some of which added
gradients in passes of their own, or waited for every message; pricing them with today's habits would be wrong by 10 %.
"""

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One program, at one time."""

    name: str
    accumulation_bytes: int
    """Bytes moved a parameter and microbatch to add weight gradients up, beside the product that makes them."""
    replica_bytes: int
    """Bytes moved a parameter and step by what every dp rank does to all it holds: clearing gradients, copies."""
    optimizer_bytes: int
    """The same by what ZeRO-1 shares out over dp: norm, clipping, AdamW, masters."""
    gradient_bytes: int
    """Of one gradient element as it is reduced over dp."""
    unfused: float = 1.0
    """Bytes of elementwise kernels over those of fused ones."""
    flash_attention: bool
    """Whether scores stay on chip: else softmax, dropout and mask pass over [b, a, s, s] in memory."""
    hides_tp_in_backward: bool
    """Whether backward's sums over tp run beside the products of weight gradients."""
    shares_p2p: bool
    """Whether tp ranks send a part each of what is the same on all of them (scatter/gather)."""
    launch_s: float = 0.0
    """What a kernel waits for the host, beside its own beginning and end: only where launches block."""
    hides_host_copies: bool = True
    """Whether an offloaded optimizer's copies to and from the host run beside its update."""
    waits_for_p2p: bool
    """Whether a stage does nothing while it sends or receives."""


OURS = Engine(
    name="megatron_core",
    accumulation_bytes=10,  # the product is rounded to 16 bits (2), read, and added to fp32 (4 + 4)
    replica_bytes=4,
    optimizer_bytes=34,  # norm 4, AdamW with scale and clip in one pass 28, 16-bit weights 2
    gradient_bytes=4,
    flash_attention=True,
    hides_tp_in_backward=True,
    shares_p2p=False,
    waits_for_p2p=False,
)
OURS_ON_CPU = dataclasses.replace(
    OURS,
    name="megatron_core on CPUs",
    accumulation_bytes=0,  # inside the product, which is measured so
    hides_tp_in_backward=False,  # gloo's threads take the time of the core that computes
)

MEGATRON_2020 = Engine(
    name="Megatron-LM, 2020",
    accumulation_bytes=6,
    replica_bytes=14,
    optimizer_bytes=46,  # unscale, norm, clip, copies and Adam each pass over it
    gradient_bytes=2,
    flash_attention=False,
    hides_tp_in_backward=False,
    shares_p2p=False,
    waits_for_p2p=True,
)
MEGATRON_2021 = dataclasses.replace(MEGATRON_2020, name="Megatron-LM, 2021 (Narayanan et al.)", shares_p2p=True)
MEGATRON_2022 = dataclasses.replace(
    MEGATRON_2021,
    name="Megatron-LM, 2022 (Korthikanti et al.)",
    accumulation_bytes=0,  # inside the product
    gradient_bytes=4,
    hides_tp_in_backward=True,
)
DEEPSPEED_2021 = dataclasses.replace(
    MEGATRON_2020,
    name="Megatron-DeepSpeed, 2021",
    shares_p2p=True,  # its pipeline engine partitions what tp ranks hold alike
)
DEEPSPEED_BF16 = dataclasses.replace(
    DEEPSPEED_2021,
    name="Megatron-DeepSpeed in bf16",
    accumulation_bytes=20,  # 16-bit gradients are cast (2 + 4), added to sums in fp32 (4 + 4 + 4), and cleared (2)
    gradient_bytes=4,
)
BLOOM_2022 = dataclasses.replace(
    DEEPSPEED_2021,
    name="Megatron-DeepSpeed, BLOOM, 2022",
    # CUDA_LAUNCH_BLOCKING=1 was set against hangs; it took 80 GPUs from 97.2 to 91.0 TFLOP/s (train/tr11-176B-ml,
    # chronicles-prequel.md): 3.7 of 55 ms a layer, for some 70 kernels as they are counted here.
    launch_s=53e-6,
)
DEEPSPEED_EXAMPLES_2020 = dataclasses.replace(
    MEGATRON_2020,
    name="Megatron-LM 1.1.5 in DeepSpeedExamples, 2020",
    # Fusion took 175B from 113 to 135 TFLOP/s (Narayanan et al. 2021, section 5.8): 4.8 ms a layer, beside 1.9 ms.
    unfused=3.5,
    hides_host_copies=False,
)
MEGATRON_CORE = Engine(
    name="Megatron-core",
    accumulation_bytes=0,
    replica_bytes=6,
    optimizer_bytes=34,
    gradient_bytes=4,
    flash_attention=True,
    hides_tp_in_backward=True,
    shares_p2p=False,
    waits_for_p2p=False,
)
