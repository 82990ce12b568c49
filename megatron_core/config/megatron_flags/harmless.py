# SPDX-License-Identifier: Apache-2.0
"""Megatron flags that are accepted without effect, because they only chose between equal implementations.

`HARMLESS_VALUES` does the same for single values of flags whose other values are refused: those that ask for what
happens anyway.
"""

from collections.abc import Mapping

HARMLESS: Mapping[str, str] = {
    "which kernel computes an operation is decided here; the numbers are the same": """
        abort-on-unmet-fused-kernel-constraints attention-backend cross-entropy-fusion-impl
        cross-entropy-loss-fusion disable-jit-fuser
        disable-mem-efficient-ln flash-attention-version fused-residual-rmsnorm no-bias-dropout-fusion
        no-bias-swiglu-fusion no-masked-softmax-fusion no-persist-layer-norm no-rope-fusion
        no-scaled-masked-softmax-fusion scaled-upper-triang-masked-softmax-fusion use-flash-attn use-flash-attn-builder
        use-flash-attn-triton use-flash-attn-v1 use-flash-attn-v2 use-fused-rmsnorm use-fused-rotary-pos-emb
        use-fused-swiglu use-fused-weighted-squared-relu use-grouped-gemm-for-dense-mlp use-te-activation-func
        use-transformer-engine-op-fuser
    """,
    "softmax, norms and loss are computed in at least fp32 always": "attention-softmax-in-fp32",
    "norm weights are not decayed, so that weight and 1 + weight train alike": "apply-layernorm-1p",
    "gradients are accumulated and reduced in fp32 unless --grad-reduce-in-bf16 is given": """
        accumulate-allreduce-grads-in-fp32 ddp-reduce-scatter-with-fp32-accumulation fp32-allreduce
    """,
    "weights that ranks hold alike stay equal, bit for bit": "sync-tp-duplicated-parameters",
    "the loss is the mean over all tokens of the batch always": "calculate-per-token-loss",
    "how gradients are accumulated, bucketed and reduced is decided here; their values are the same": """
        DDP-impl create-all-gather-group ddp-average-in-collective ddp-num-buckets ddp-pad-buckets-for-high-nccl-busbw
        defer-embedding-wgrad-compute delay-wgrad-compute disable-align-grad-reduce no-align-grad-reduce
        no-contiguous-buffers-in-local-ddp no-delay-grad-reduce no-gradient-accumulation-fusion
        no-gradient-reduce-div-fusion no-use-layer-wise-param-layout use-contiguous-buffers-in-ddp wgrad-deferral-limit
    """,
    "how ranks send and overlap is decided here; set NCCL's own environment variables for more": """
        disable-clone-scatter-output-in-embedding disable-gloo-process-groups disable-symmetric-registration
        disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad disable-tp-comm-overlap-ag
        disable-tp-comm-overlap-rs disable-tp-comm-split-ag
        disable-tp-comm-split-rs high-priority-a2a-comm-stream high-priority-stream-groups local-rank
        nccl-communicator-config-path no-async-tensor-model-parallel-allreduce no-clone-scatter-output-in-embedding
        no-overlap-p2p-communication
        no-scatter-gather-tensors-in-pipeline no-tp-comm-bulk-dgrad no-tp-comm-bulk-wgrad no-tp-comm-overlap-ag
        no-tp-comm-overlap-rs no-tp-comm-split-ag no-tp-comm-split-rs overlap-p2p-communication
        overlap-p2p-communication-warmup-flush pipeline-model-parallel-comm-backend sharp-enabled-group
        symmetric-ar-type tp-comm-bootstrap-backend tp-comm-overlap tp-comm-overlap-cfg tp-comm-overlap-rs-dgrad
        use-nccl-ub use-ring-exchange-p2p use-sharp
    """,
    "it has no effect at --context-parallel-size 1, the only size": """
        cp-comm-type hierarchical-context-parallel-sizes
    """,
    "the stages follow from --pipeline-model-parallel-size": "no-pipeline-parallel",
    "steps are not captured in CUDA graphs; the numbers are the same": """
        cuda-graph-impl cuda-graph-modules cuda-graph-scope cuda-graph-warmup-steps enable-cuda-graph
        external-cuda-graph optimizer-cuda-graph te-rng-tracker inference-rng-tracker
    """,
    "there is one implementation of each thing, with no switch": """
        cpu-torch-adam deepspeed deepspeed-activation-checkpointing ds-fused-adam enable-experimental
        use-legacy-models use-mcore-models
    """,
    "recomputation keeps the input of each group of layers, not copies in a buffer": "contigious-checkpointing",
    "weights are drawn on the CPU by name, each rank just its own": """
        init-model-with-meta-device use-cpu-initialization
    """,
    "samples are found by arithmetic: there is no index to build, cache or order to save": """
        data-cache-path dataloader-defer-npy-index-mmap dataloader-fast-cache-load mid-level-dataset-surplus
        mmap-warmup no-create-attention-mask-in-dataloader no-data-sharding no-mmap-bin-files
        num-dataset-builder-threads per-dataset-sequences-path renormalize-blend-weights return-data-index
        use-pin-memory
    """,
    "it steered how text became tokens; training reads the tokens that preprocess_data wrote": """
        allow-ambiguous-pad-tokens disable-tokenizer-sentencepiece-ignore-extra-whitespaces legacy-tokenizer
        no-tokenizer-sentencepiece-ignore-extra-whitespaces tokenizer-hf-include-special-tokens
        tokenizer-hf-no-include-special-tokens tokenizer-hf-no-use-fast tokenizer-hf-use-fast
        tokenizer-sentencepiece-legacy trust-remote-code use-gigatoken
    """,
    "padding of the vocabulary never enters the numbers": "disable-pad-vocab-size no-pad-vocab-size",
    "when weights are gathered is decided here; --overlap-param-gather hides it behind the forward": """
        delay-param-gather no-align-param-gather overlap-param-gather-with-optimizer-step
    """,
    "gradients lie in buckets of --ddp-bucket-size, whatever they are reduced by": """
        zero-allgather-bucket-size zero-contigious-gradients zero-reduce-bucket-size zero-reduce-scatter
    """,
    "how an offloaded optimizer's gradients and weights travel is decided here": """
        no-pin-cpu-grads no-pin-cpu-params overlap-cpu-optimizer-d2h-h2d use-torch-optimizer-for-cpu-offload
    """,
    "torch keeps the pinned memory of offloaded activations for the next step": """
        cpu-offloading-retain-pinned-cpu-buffers
    """,
    "checkpoints hold no tokenizer files": """
        disable-save-tokenizer-assets disable-use-tokenizer-model-from-checkpoint-args no-save-tokenizer-assets
        no-use-tokenizer-model-from-checkpoint-args
    """,
    "checkpoints have one format, free of the layout, that every layout loads": """
        auto-detect-ckpt-format ckpt-drop-redundant-extra-state ckpt-format dist-ckpt-format
        dist-ckpt-optim-fully-reshardable dist-ckpt-save-pre-mcore-014 distrib-optim-fully-reshardable-mem-efficient
        universal-checkpoint use-dist-ckpt
    """,
    "how ranks share the writing and reading of a checkpoint is decided here": """
        async-ckpt-cpu-priority async-ckpt-io-priority async-ckpt-use-cpu-shm async-strategy
        ckpt-assume-constant-structure ckpt-fully-parallel-load ckpt-fully-parallel-load-exchange-algo
        ckpt-fully-parallel-load-per-rank-objects ckpt-fully-parallel-load-process-group ckpt-fully-parallel-save
        ckpt-fully-parallel-save-process-group ckpt-pg-tensors-cache-create ckpt-pg-tensors-cache-path
        dist-ckpt-workers no-ckpt-fully-parallel-save use-persistent-ckpt-worker
    """,
    "checksums and the fit of all pieces are checked at every load": """
        disable-ckpt-load-validate-sharding-integrity no-ckpt-load-validate-sharding-integrity verify-integrity
    """,
    "the state of the random numbers is one seed, saved always": "no-save-rng",
    "--log-straggler measures from the first step and names the slowest and the fastest rank": """
        disable-straggler-on-startup straggler-ctrlr-port straggler-minmax-count
    """,
    "data is read by threads, which signals do not reach": "exit-signal-handler-for-dataloader",
    "metrics.jsonl and TensorBoard have the batch size and the learning rate always": """
        log-batch-size-to-tensorboard no-log-learnig-rate-to-tensorboard
    """,
    "timers are maxima over ranks and never add a barrier": "no-barrier-with-level-1-timing timing-log-option",
    "the profiler is torch's": """
        nvtx-ranges profile-backward pytorch-profiler-collect-callstack pytorch-profiler-collect-chakra
        pytorch-profiler-collect-shapes record-shapes use-pytorch-profiler
    """,
    "that report is not written; training is the same": """
        app-tag-run-name app-tag-run-version config-logger-dir disable-flight-recorder-dump-on-timeout
        disable-flight-recorder-extra-dump-on-exec disable-flight-recorder-include-only-active
        dump-param-to-param-group-map enable-one-logger flight-recorder-dump-path flight-recorder-include-stack-trace
        flight-recorder-trace-buffer-size gpu-sniff-test-interval log-device-memory-used log-energy
        log-max-attention-logit log-optimizer-states-to-tensorboard log-progress logging-level
        memory-snapshot-path no-flight-recorder-dump-on-timeout no-flight-recorder-extra-dump-on-exec
        no-flight-recorder-include-only-active no-one-logger one-logger-async one-logger-entity one-logger-project
        one-logger-run-name otel-enabled otel-service-name otel-span-groups record-memory-history rerun-mode
        result-rejected-tracker-filename run-workload-inspector-server test-mode
    """,
    "it only timed or freed memory between steps": """
        disable-manual-gc-eval empty-unused-memory-level no-manual-gc-eval synchronize-each-layer train-sync-interval
    """,
    "validation uses the microbatch of training; its loss does not depend on it": "eval-micro-batch-size",
    "only SGD reads it": "sgd-momentum",
    "it is read only with --fp8-format": """
        fp8-amax-compute-algo fp8-amax-history-len fp8-interval fp8-margin fp8-recipe
    """,
    "remote object stores are not used": "disable-msc",
}
"""Reason -> the flags."""

_DEFAULT = "that is what happens anyway"
_STRICT = "loading is strict always: missing, extra or misshapen tensors are an error"
_SIGNALS = "with --exit-signal-handler SIGTERM and SIGUSR1 both stop the run"

HARMLESS_VALUES: Mapping[tuple[str, str], str] = {
    ("optimizer-offload-fraction", "1"): _DEFAULT,
    ("optimizer-offload-fraction", "1.0"): _DEFAULT,
    ("data-impl", "infer"): "datasets are .bin/.idx pairs, read through a memory map",
    ("data-impl", "mmap"): "datasets are .bin/.idx pairs, read through a memory map",
    ("data-parallel-sharding-strategy", "no_shard"): _DEFAULT,
    ("dist-ckpt-strictness", "assume_ok_unexpected"): _STRICT,
    ("dist-ckpt-strictness", "raise_all"): _STRICT,
    ("dist-ckpt-strictness", "raise_unexpected"): _STRICT,
    ("ds-sequence-parallel-size", "1"): _DEFAULT,
    ("encoder-pipeline-model-parallel-size", "0"): _DEFAULT,
    ("encoder-tensor-model-parallel-size", "0"): _DEFAULT,
    ("exit-signal", "SIGTERM"): _SIGNALS,
    ("exit-signal", "SIGUSR1"): _SIGNALS,
    ("exp-avg-dtype", "fp32"): _DEFAULT,
    ("exp-avg-sq-dtype", "fp32"): _DEFAULT,
    ("expert-model-parallel-size", "1"): _DEFAULT,
    ("expert-tensor-parallel-size", "1"): _DEFAULT,
    ("hybrid-attention-ratio", "0.0"): _DEFAULT,
    ("hybrid-mlp-ratio", "0.0"): _DEFAULT,
    ("main-grads-dtype", "fp32"): _DEFAULT,
    ("main-params-dtype", "fp32"): _DEFAULT,
    ("mlp-type", "standard"): _DEFAULT,
    ("moe-expert-parallel-size", "1"): _DEFAULT,
    ("num-distributed-optimizer-instances", "1"): _DEFAULT,
    ("num-experts", "1"): _DEFAULT,
    ("outer-dp-sharding-strategy", "no_shard"): _DEFAULT,
    ("rope-type", "rope"): _DEFAULT,
    ("softmax-type", "vanilla"): _DEFAULT,
    ("tensor-parallel-num-weight-shards", "1"): _DEFAULT,
    ("transformer-impl", "auto"): _DEFAULT,
    ("transformer-impl", "local"): _DEFAULT,
    ("vocab-extra-ids", "0"): _DEFAULT,
    ("zero-stage", "0"): _DEFAULT,
}
"""(flag, value) -> reason."""
