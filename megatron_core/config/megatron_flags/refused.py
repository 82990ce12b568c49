# SPDX-License-Identifier: Apache-2.0
"""Megatron flags that would change the model, the numbers or the memory and are not honoured: why, and what to use."""

from collections.abc import Mapping

REFUSED: Mapping[str, str] = {
    "mixture-of-experts layers are not part of this framework: train a dense model": """
        create-moe-param-group disable-moe-token-dropping disable-moe-top2-2nd-expert-sampling
        enable-expert-tensor-parallelism ep-overlap-early-attn-memory-release expert-interval
        expert-model-parallel-size expert-tensor-parallel-num-weight-shards expert-tensor-parallel-size
        gtp-expert-remat-nccl-ub mlp-type moe-apply-probs-on-input moe-aux-loss-coeff moe-combine-bwd-dtype
        moe-deepep-num-sms moe-dispatch-fwd-dtype moe-enable-deepep moe-enable-routing-replay
        moe-eval-capacity-factor moe-expert-capacity-factor moe-expert-parallel-size
        moe-expert-rank-capacity-factor moe-extended-tp moe-ffn-hidden-size moe-flex-dispatcher-backend
        moe-flex-dispatcher-num-sms moe-grouped-gemm moe-hybridep-num-blocks-permute
        moe-hybridep-num-blocks-unpermute moe-hybridep-num-sms moe-hybridep-num-sms-preprocessing
        moe-hybridep-pad-uneven-dispatch-inputs moe-input-jitter-eps moe-latent-size moe-layer-freq
        moe-layer-recompute moe-loss-coeff moe-min-capacity moe-mlp-glu-interleave-size moe-ncclep-zero-copy
        moe-pad-expert-input-to-capacity moe-pad-experts-for-cuda-graph-inference moe-paged-stash
        moe-paged-stash-buffer-size-factor-cpu moe-paged-stash-buffer-size-factor-cuda moe-paged-stash-page-size
        moe-per-layer-logging moe-permute-fusion moe-permute-fusion-into-hybridep moe-router-bias-update-rate
        moe-router-dtype moe-router-enable-expert-bias moe-router-force-biased moe-router-force-load-balancing
        moe-router-fusion moe-router-group-topk moe-router-load-balancing-type moe-router-num-groups
        moe-router-padding-for-fp8 moe-router-padding-for-quantization moe-router-pre-softmax
        moe-router-quantile-balancing-ema moe-router-score-function moe-router-topk
        moe-router-topk-scaling-factor moe-routing-trace-capture-hidden-states moe-routing-trace-capture-logits
        moe-routing-trace-dump-weights moe-routing-trace-max-training-iters moe-routing-trace-path
        moe-shared-expert-gate moe-shared-expert-glu-interleave-size moe-shared-expert-intermediate-size
        moe-shared-expert-overlap moe-single-grouped-bias moe-single-grouped-weight moe-token-dispatcher-type
        moe-token-drop-policy moe-token-dropping moe-train-capacity-factor moe-upcycling-granularity
        moe-use-grouped-tensor moe-use-legacy-grouped-gemm moe-use-upcycling moe-z-loss-coeff num-experts
        num-experts-switch overlap-dispatch-backward-with-experts-wgrad overlap-moe-expert-parallel-comm
        save-tokens-per-expert-interval topk use-grouped-gemm-for-shared-expert use-tutel
    """,
    "reinforcement learning and fine-tuning on chats are not part of this framework": """
        chat-template grpo-clamp-eps-lower grpo-clamp-eps-upper grpo-default-temperature grpo-default-top-p
        grpo-entropy-term-weight grpo-filter-groups-with-same-reward grpo-group-size grpo-iterations
        grpo-kl-beta grpo-prompts-per-step langrl-env-config langrl-external-server
        langrl-inference-server-conversation-template langrl-inference-server-type
        no-rl-inference-logprobs-is-correction no-rl-offload-inference-model-weights-when-idle
        no-rl-partial-rollouts no-rl-persist-cuda-graphs no-rl-skip-bos-token no-rl-training-cuda-graphs
        no-rl-use-sequence-packing no-rl-verify-model-weights-swap perform-rl-step refit-method
        rl-calculate-intra-group-similarity rl-consumption-granularity rl-default-temperature rl-default-top-k
        rl-default-top-p rl-durable-rollout-bank rl-generation-batch-size rl-generation-lag
        rl-importance-sampling-truncation-coef rl-inference-expert-model-parallel-size
        rl-inference-expert-tensor-model-parallel-size rl-inference-logprobs-is-correction
        rl-inference-model-unified-memory-level rl-inference-parsers rl-inference-pipeline-model-parallel-size
        rl-inference-tensor-model-parallel-size rl-kv-cache-management-mode rl-max-inflight-requests
        rl-num-parallel-generation-batches rl-num-parallel-generations
        rl-offload-inference-model-weights-when-idle rl-offload-kv-cache-during-training
        rl-offload-optimizer-during-inference rl-parallel-generation-tasks rl-partial-rollouts
        rl-persist-cuda-graphs rl-profile rl-profile-dir rl-prompts-per-eval
        rl-remove-kv-cache-during-training rl-reset-cuda-graphs rl-rollout-bank-dir rl-rollout-bank-max-bytes
        rl-sequence-packing-algo rl-sequence-packing-bin-size rl-sequence-packing-max-sequences-per-bin
        rl-skip-bos-token rl-submission-granularity rl-training-cuda-graphs rl-use-sequence-packing
        rl-verify-model-weights-swap sft sft-tokenizer-prompt-format use-same-sampling-seed-across-dp-ranks
    """,
    "inference is a tool of its own, not a flag of training": """
        cache-mla-latents decode-only-cuda-graphs disable-chunked-prefill ds-inference enable-chunked-prefill
        flash-decode inference inference-batch-times-seqlen-threshold inference-coordinator-port
        inference-cuda-graph-all-prefills inference-cuda-graph-max-tokens inference-cuda-graph-scope
        inference-disable-ep-consensus inference-disable-triton-nvls-kernels inference-dynamic-batching
        inference-dynamic-batching-async-sched-mode inference-dynamic-batching-block-size
        inference-dynamic-batching-buffer-guaranteed-fraction
        inference-dynamic-batching-buffer-overflow-factor inference-dynamic-batching-buffer-size-gb
        inference-dynamic-batching-cuda-graph-max-tokens
        inference-dynamic-batching-cuda-graph-mixed-prefill-count
        inference-dynamic-batching-cuda-graph-sizing-distribution inference-dynamic-batching-logprobs-mode
        inference-dynamic-batching-mamba-memory-ratio inference-dynamic-batching-max-requests
        inference-dynamic-batching-max-requests-override inference-dynamic-batching-max-tokens
        inference-dynamic-batching-max-tokens-override inference-dynamic-batching-num-cuda-graphs
        inference-dynamic-batching-paused-buffer-size-gb inference-dynamic-batching-prefix-caching
        inference-dynamic-batching-prefix-caching-coordinator-policy
        inference-dynamic-batching-prefix-caching-eviction-policy
        inference-dynamic-batching-prefix-caching-mamba-gb
        inference-dynamic-batching-prefix-caching-routing-alpha inference-dynamic-batching-sampling-backend
        inference-dynamic-batching-track-generated-token-events
        inference-dynamic-batching-track-paused-request-events
        inference-dynamic-batching-unified-memory-level inference-fuse-tp-communication
        inference-grouped-gemm-backend inference-logging-step-interval inference-max-batch-size
        inference-max-requests inference-max-seq-length inference-moe-disable-fused-quant-kernels
        inference-moe-token-dispatcher-type inference-shards
        inference-text-gen-server-logging inference-use-synchronous-zmq-collectives inference-wandb-logging
        max-tokens-to-oom mlp-chunks-for-prefill nccl-all-reduce-for-prefill
        no-inference-disable-ep-consensus no-inference-dynamic-batching-prefix-caching
        no-inference-text-gen-server-logging no-inference-use-synchronous-zmq-collectives
        no-inference-wandb-logging num-speculative-tokens use-legacy-static-engine
    """,
    "only GPT is trained here, not BERT, T5, retrieval or vision models": """
        bert-embedder-type bert-load bert-no-binary-head biencoder-projection-dim
        biencoder-shared-query-context-model block-data-path classes-fraction data-per-class-fraction
        decoder-num-layers decoder-seq-length dino-bottleneck-size dino-freeze-last-layer dino-head-hidden-size
        dino-local-crops-number dino-local-img-size dino-norm-last-layer dino-teacher-temp
        dino-warmup-teacher-temp dino-warmup-teacher-temp-epochs embedding-path
        encoder-pipeline-model-parallel-size encoder-tensor-model-parallel-size evidence-data-path faiss-use-gpu
        ict-head-size ict-load img-dim img-h img-w indexer-batch-size indexer-log-interval iter-per-epoch
        mask-factor mask-prob mask-type num-channels num-classes output-bert-embeddings patch-dim
        pipeline-model-parallel-split-rank query-in-block-prob relative-attention-max-distance
        relative-attention-num-buckets report-topk-accuracies retriever-report-topk-accuracies
        retriever-score-scaling retriever-seq-length retro-add-retriever retro-attention-gate
        retro-cyclic-train-iters retro-encoder-attention-dropout retro-encoder-hidden-dropout
        retro-encoder-layers retro-no-verify-neighbor-count retro-num-neighbors retro-num-retrieved-chunks
        retro-project-dir retro-return-doc-ids retro-workdir sample-rate short-seq-prob swin-backbone-type
        titles-data-path use-one-sent-docs vision-backbone-type vision-pretraining vision-pretraining-type
        vocab-extra-ids
    """,
    "state-space, linear, latent and sparse-index attention are not part of this framework": """
        disable-dsa-indexer-rotate-activation disable-dsa-indexer-scoring-relu disable-mamba-mem-eff-path
        dsa-indexer-head-dim dsa-indexer-k-norm-epsilon dsa-indexer-k-norm-fp32 dsa-indexer-loss-coeff
        dsa-indexer-n-heads dsa-indexer-rope-interleaved dsa-indexer-skip-topk-offset dsa-indexer-topk
        dsa-indexer-topk-freq dsa-indexer-use-sparse-loss dsa-kernel-backend experimental-attention-variant
        gdp-cutedsl-kernel gdp-num-chunk-states-to-recompute gdp-num-householder hybrid-attention-ratio
        hybrid-layer-pattern hybrid-mlp-ratio hybrid-override-pattern is-hybrid-model kv-lora-rank
        linear-attention-freq linear-conv-kernel-dim linear-key-head-dim linear-num-key-heads
        linear-num-value-heads linear-value-head-dim mamba-head-dim mamba-inference-conv-states-dtype
        mamba-inference-ssm-states-dtype mamba-num-groups mamba-num-heads mamba-state-dim
        mamba-training-ssm-states-dtype mla-down-proj-fusion multi-latent-attention
        no-dsa-indexer-rotate-activation no-dsa-indexer-scoring-relu q-lora-rank qk-head-dim
        qk-pos-emb-head-dim v-head-dim
    """,
    "that variant of the model is not built here: leave it out, or choose among the flags under `model`": """
        activation-func-clamp-value apply-residual-connection-post-layernorm attention-output-gate
        embedding-weights-in-fp32 enable-mhc-connections fp32-residual-connection glu-linear-offset
        heterogeneous-layers-config-encoded-json heterogeneous-layers-config-path
        memory-centric-tiled-linear mhc-init-gating-factor mhc-num-residual-streams mhc-recompute-layer-num
        mhc-sinkhorn-iterations mlp-chunks-for-training mtp-detach-heads mtp-hsm mtp-hybrid-override-pattern
        mtp-loss-scaling-factor mtp-num-layers mtp-standalone mtp-use-repeated-layer onnx-safe
        output-logit-dtype qk-clip qk-clip-alpha qk-clip-threshold qk-l2-norm quick-geglu
        scattered-embeddings softmax-type spec split-transformers tile-factor window-attn-skip-freq window-size
    """,
    "what recomputation keeps is cut over tensor-parallel ranks by --sequence-parallel: use it": """
        distribute-checkpointed-activations distribute-saved-activations partition-activations
    """,
    "rotary embeddings are rescaled by --rotary-seq-len-interpolation-factor or --use-rope-scaling alone": """
        mrope-section mscale mscale-all-dim no-rope-freq no-yarn-correction-range-round-to-int rope-type
        rotary-scaling-factor yarn-beta-fast yarn-beta-slow yarn-correction-range-round-to-int
        yarn-original-max-position-embeddings
    """,
    "precisions below 16 bits are not offered: use --bf16 or --fp16": """
        disable-fp8-wgrad first-last-layers-bf16 fp4-format fp4-param-gather fp4-quantizer-factory fp4-recipe
        fp8-e4m3 fp8-format fp8-hybrid
        fp8-output-proj fp8-param-gather fp8-quantizer-factory keep-fp8-transpose-cache
        keep-fp8-transpose-cache-when-using-custom-fsdp kitchen-attention-backend kitchen-config-file
        kitchen-recipe-number no-fp8-wgrad num-layers-at-end-in-bf16 num-layers-at-start-in-bf16
        reuse-grad-buf-for-mxfp8-param-ag te-precision-config-file use-kitchen-attention
    """,
    "masters, moments and main gradients are kept in fp32": """
        ddp-param-name-patterns-for-fp32-local-accumulation exp-avg-dtype exp-avg-sq-dtype main-grads-dtype
        main-params-dtype use-precision-aware-optimizer
    """,
    "the loss is computed in at least fp32: leave it out": "fp16-lm-cross-entropy",
    "bitwise repeatability of CUDA kernels is not enforced: leave it out (runs on CPU repeat bit for bit)": """
        batch-invariant-backend batch-invariant-mode deterministic-mode disable-bf16-reduced-precision-matmul
    """,
    "AdamW is the only optimizer": """
        lion-beta1 lion-beta2 muon-coefficient-type muon-extra-scale-factor muon-fp32-matmul-prec muon-momentum
        muon-nesterov muon-no-split-qkv muon-num-ns-steps muon-scalar-optimizer muon-scale-mode muon-tp-mode
        muon-use-nesterov muon-use-syrk
    """,
    "all weights have one learning rate; norms and biases alone are not decayed": """
        apply-wd-to-qk-layernorm decoupled-lr decoupled-min-lr freeze-all-layers head-lr-mult
        mup-attn-scale-power mup-base-head-dim mup-base-hidden-size mup-embedding-mult mup-output-mult
        mup-width-mult no-weight-decay-cond-type use-mup
    """,
    "weights start from N(0, --init-method-std), the same on every replica": """
        data-parallel-random-init embedding-init-method-std init-method-xavier-uniform lazy-mpu-init
        no-initialization
    """,
    "distillation is not part of this framework": """
        hidden-size-teacher kd kd-alpha-ce kd-beta-ce kd-temp load-teacher logits-load-decode-threads
        logits-load-dir logits-load-ignore-errors logits-load-kd-loss-alpha logits-load-msc-prefetch-depth
        logits-load-prefetch-factor logits-save-dir logits-save-dtype logits-save-top-k logits-save-top-p
        logits-save-top-p-min-k mos num-attention-heads-teacher num-experts-teacher num-layers-teacher
    """,
    "weights are cut by tensor and pipeline parallelism, not by FSDP: raise those sizes": """
        data-parallel-sharding-strategy disable-strict-fsdp-dtensor-load enable-full-sharding-in-hsdp
        fsdp-db-use-persist-buf-on-alloc-fail fsdp-double-buffer fsdp-manual-registration gtp-remat-nccl-ub
        gtp-remat-opt-in-modules gtp-remat-reduce-scatter-with-fp32-accumulation
        megatron-fsdp-enable-fine-grained-param-gather megatron-fsdp-grad-comm-dtype
        megatron-fsdp-main-grads-dtype megatron-fsdp-main-params-dtype megatron-fsdp-max-pool-double-buffer
        megatron-fsdp-version no-strict-fsdp-dtensor-load num-distributed-optimizer-instances
        outer-dp-sharding-strategy remote-device suggested-communication-unit-size
        tensor-parallel-num-weight-shards torch-fsdp2-no-reshard-after-forward use-custom-fsdp use-megatron-fsdp
        use-torch-fsdp2 zero-stage
    """,
    "sequences are cut by --sequence-parallel alone": """
        ds-sequence-parallel-fpdt ds-sequence-parallel-fpdt-chunk-size ds-sequence-parallel-fpdt-offloading
        ds-sequence-parallel-size force-ds-sequence-parallel hybrid-context-parallel
        max-seqlen-per-dp-cp-rank
    """,
    "shape the stages with --pipeline-split or --decoder-first-pipeline-num-layers and --decoder-last-...": """
        pipeline-model-parallel-layout standalone-embedding-stage
    """,
    "the interleaved schedule groups its microbatches by itself": """
        microbatch-group-size-per-virtual-pipeline-stage
    """,
    "only auto and local exist": "transformer-impl",
    "restarting inside a process, fault injection and NVIDIA's cluster services are not part of this framework": """
        adlr-autoresume adlr-autoresume-interval aml-data-download-path calc-ft-timeouts enable-ft-package
        error-injection-rate error-injection-type fake-process-group fault-injector-delay-start-iteration
        fault-injector-fault-delay fault-injector-fault-probabilities fault-injector-fault-types
        fault-injector-mtti-seconds fault-injector-num-ranks fault-injector-offset-seconds
        fault-injector-ranks fault-injector-seed ft-num-warmup-iters inprocess-active-world-size
        inprocess-barrier-timeout inprocess-completion-timeout inprocess-empty-cuda-cache
        inprocess-granularity inprocess-hard-timeout inprocess-heartbeat-interval
        inprocess-heartbeat-timeout inprocess-last-call-wait inprocess-max-iterations
        inprocess-monitor-process-interval inprocess-monitor-thread-interval
        inprocess-progress-watchdog-interval inprocess-restart inprocess-soft-timeout
        inprocess-termination-grace-time replication replication-factor replication-jump
    """,
    "tensors are not dumped during training: use --log-params-norm and --log-num-zeros-in-grad": """
        save-activations-interval save-dgrads-interval save-params-interval save-wgrads-interval
    """,
    "loading is strict, which no flag loosens: leave it out; missing, extra or misshapen tensors are all listed": """
        dist-ckpt-strictness
    """,
    "every checkpoint is whole and durable: use --save-interval, and --save-retain-interval and --most-recent-k for "
    "which stay": """
        non-persistent-ckpt-type non-persistent-global-ckpt-dir non-persistent-local-ckpt-algo
        non-persistent-local-ckpt-dir non-persistent-save-interval
    """,
    "checkpoints have one format, which training does not convert: leave it out": """
        ckpt-convert-format ckpt-convert-save ckpt-convert-update-legacy-dist-opt-format
    """,
    "use --load DIR --finetune in the first run, and --load of the --save directory from then on": """
        pretrained-checkpoint
    """,
    "use --load DIR --ckpt-step STEP": "load-tag",
    "steps, samples and learning rate go on where the checkpoint stood: use --finetune to start from step 0, "
    "--override-opt-param-scheduler for another schedule": """
        no-load-lr-state override-ckpt-iteration reset-iteration
    """,
    "fp32 master weights come with the optimizer: leave it and --no-load-optim out": "load-main-params-from-ckpt",
    "a checkpoint loads at any layout: set the parallel sizes of this run": "use-mp-args-from-checkpoint-args",
    "SIGTERM and SIGUSR1 stop a run, with --exit-signal-handler": "exit-signal",
    "use --loss-spike-policy: spikes are looked for in the loss": "check-for-large-grads",
    "use --distributed-timeout-minutes": "distributed-timeout-seconds-after-init",
    "use --profile-step-start and --profile-step-end": "profile-steps",
    "use --config FILE.yaml with this framework's sections": "yaml-cfg",
    "use --micro-batch-size (samples of one forward) and --global-batch-size": "batch-size",
    "use --tensor-model-parallel-size": "model-parallel-size",
    "use --lr-warmup-fraction, --lr-warmup-iters or --lr-warmup-samples": "warmup",
    "tokens are counted in samples: divide by --seq-length and use --train-samples, --lr-decay-samples, "
    "--lr-warmup-samples": "lr-decay-tokens lr-warmup-tokens train-tokens",
    "choose a --global-batch-size that --micro-batch-size times the data-parallel size divides": """
        decrease-batch-size-if-needed
    """,
    "a validation takes --eval-iters batches of --global-batch-size samples every --eval-interval steps": """
        eval-global-batch-size skip-train start-eval-at-iter
    """,
    "use --validation-sets NAME=PREFIX ...": "multiple-validation-sets validation-set-names",
    "use --train-data-path, --valid-data-path, --test-data-path or --per-split-data-args-path": """
        test-weighted-split-paths-path train-weighted-split-paths-path valid-weighted-split-paths-path
    """,
    "datasets are .bin/.idx pairs of memory-mapped tokens: make them with tools/preprocess_data.py": """
        data-impl data-efficiency-curriculum-learning enable-msc object-storage-cache-path random-ltd
        repeated-dataloader s3-cache-path train-data-exact-num-epochs train-desc-path train-doc-idx-path
        train-idx-path train-sample-idx-path train-shuffle-idx-path use-dataset-only
    """,
    "use --reset-attention-mask (attention within a document) and --reset-position-ids": """
        dataloader-inter-document-masking
    """,
    "fill-in-the-middle takes its marker tokens from the tokenizer; set --fim-rate and --fim-spm-rate": """
        fim-eod-token fim-fragment-rate fim-middle-token fim-no-prefix fim-pad-token fim-prefix-token
        fim-split-sample fim-suffix-token
    """,
    "the tokenizer's own files decide: see --tokenizer-type, --tokenizer-model and --vocab-size": """
        null-tokenizer-eod-id null-tokenizer-pad-id tiktoken-num-special-tokens tiktoken-pattern
        tiktoken-special-tokens tokenizer-metadata tokenizer-special-tokens
    """,
    "set --rampup-batch-size instead": "phase-transition-iterations",
    "say of how many layers: --cpu-offloading-num-layers, beside --recompute-granularity full": "checkpoint-in-cpu",
    "the optimizer is offloaded as a whole: use --optimizer-cpu-offload alone": "optimizer-offload-fraction",
    "a DeepSpeed file is not read: put its batch sizes, precision, clipping and offload on flags": """
        deepspeed-config deepscale deepscale-config deepspeed-mpi
    """,
}
"""Reason, with what to use instead -> the flags."""

REFUSED_VALUES: Mapping[tuple[str, str], str] = {
    ("dataloader-type", "batch"): "samples come in the order of their number: use --dataloader-type single",
    ("dataloader-type", "external"): "data is read by this framework: use --dataloader-type single",
    ("position-embedding-type", "alibi"): "use learned_absolute, rope or none",
    ("position-embedding-type", "mrope"): "use rope",
    ("position-embedding-type", "relative"): "use learned_absolute, rope or none",
    ("position-embedding-type", "yarn"): "use rope, with --use-rope-scaling or --rotary-seq-len-interpolation-factor",
    ("tokenizer-type", "TikTokenizer"): "convert it to a tokenizer.json and use HuggingFaceTokenizer",
}
"""(real flag, value) -> why not, and what to use; other unknown values get the plain list of choices."""
