# SPDX-License-Identifier: Apache-2.0
"""Megatron flags whose feature this framework will have but does not have yet. Who builds one takes its names out."""

from collections.abc import Mapping

NOT_YET: Mapping[str, str] = {
    "saving and loading checkpoints": """
        async-ckpt-cpu-priority async-ckpt-io-priority async-ckpt-use-cpu-shm async-strategy
        auto-detect-ckpt-format ckpt-assume-constant-structure ckpt-convert-format ckpt-convert-save
        ckpt-convert-update-legacy-dist-opt-format ckpt-drop-redundant-extra-state ckpt-format
        ckpt-fully-parallel-load ckpt-fully-parallel-load-exchange-algo
        ckpt-fully-parallel-load-per-rank-objects ckpt-fully-parallel-load-process-group
        ckpt-fully-parallel-save ckpt-fully-parallel-save-process-group ckpt-pg-tensors-cache-create
        ckpt-pg-tensors-cache-path disable-ckpt-load-validate-sharding-integrity dist-ckpt-format
        dist-ckpt-optim-fully-reshardable dist-ckpt-save-pre-mcore-014 dist-ckpt-strictness dist-ckpt-workers
        distrib-optim-fully-reshardable-mem-efficient load-main-params-from-ckpt load-tag
        no-ckpt-fully-parallel-save no-ckpt-load-validate-sharding-integrity no-load-lr-state no-save-rng
        non-persistent-ckpt-type non-persistent-global-ckpt-dir non-persistent-local-ckpt-algo
        non-persistent-local-ckpt-dir non-persistent-save-interval override-ckpt-iteration
        override-lr-scheduler persistent-save-interval pretrained-checkpoint reset-iteration
        universal-checkpoint use-checkpoint-lr-scheduler use-dist-ckpt use-mp-args-from-checkpoint-args
        use-persistent-ckpt-worker verify-integrity
    """,
    "stopping on signals, handling faults and spikes": """
        check-for-large-grads check-for-spiky-loss disable-straggler-on-startup exit-signal
        exit-signal-handler-for-dataloader exit-signal-handler-for-training kill-switch-file
        skip-train-iteration-range straggler-ctrlr-port straggler-minmax-count
    """,
    "sharding the optimizer (ZeRO-1)": """
        delay-param-gather no-align-param-gather overlap-param-gather overlap-param-gather-with-optimizer-step
        use-distributed-optimizer zero-allgather-bucket-size zero-contigious-gradients zero-reduce-bucket-size
        zero-reduce-scatter
    """,
    "recomputing activations": """
        checkpoint-activations checkpoint-num-layers contigious-checkpointing deepspeed-activation-checkpointing
        distribute-checkpointed-activations distribute-saved-activations partition-activations profile-backward
        recompute-activations recompute-granularity recompute-method recompute-modules recompute-num-layers
    """,
    "offloading to host memory": """
        activation-offload-fraction checkpoint-in-cpu cpu-offloading-num-layers
        cpu-offloading-retain-pinned-cpu-buffers cpu-optimizer delay-offload-until-cuda-graph
        delta-offload-bytes-across-pp-ranks fine-grained-activation-offloading
        fine-grained-offloading-max-inflight-offloads min-offloaded-tensor-size no-pin-cpu-grads no-pin-cpu-params
        offload-modules optimizer-cpu-offload optimizer-offload-fraction overlap-cpu-optimizer-d2h-h2d
        use-torch-optimizer-for-cpu-offload
    """,
    "1-bit Adam": "onebit-freeze-step",
}
"""What is missing -> the flags that ask for it."""

NOT_YET_VALUES: Mapping[tuple[str, str], str] = {
    ("data-parallel-sharding-strategy", "optim"): "sharding the optimizer (ZeRO-1)",
    ("optimizer", "onebit-adam"): "1-bit Adam",
    ("transformer-impl", "transformer_engine"): "Transformer Engine's modules",
    ("zero-stage", "1"): "sharding the optimizer (ZeRO-1)",
}
"""(flag, value) -> what is missing, where other values of the flag are fine or refused."""
