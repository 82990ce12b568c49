# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# How every job of this folder runs; sourced by its sbatch script, which is submitted from the root of the checkout:
#
#     launch RUN_DIRECTORY PROGRAM [ARGUMENT ...]
#
# runs `python PROGRAM ARGUMENT ... --save RUN_DIRECTORY --load RUN_DIRECTORY --exit-signal-handler` as every task of the
# job and ends the job as RUN_DIRECTORY/exit.json tells, or where a run left none, its own exit code:
#   75     stopped by a signal with a checkpoint saved: back into the queue, to resume when its turn comes
#   0, 2   finished, or refused for its configuration or input: the job ends with that code
#   else   it died: back into the queue if it saved a checkpoint since it started. One that died before that would die
#          again, and does not come back for ever.
#
# Set before sbatch, where they are needed:
#   PYTHON            the interpreter; unset: .venv/bin/python
#   PYXIS_IMAGE       run in this image by enroot and pyxis (then PYTHON is the image's, such as python3)
#   APPTAINER_IMAGE   run in this image by Apptainer
#   CONTAINER_MOUNTS  what the container sees beside the checkout, such as /data:/data,/scratch:/scratch
#   MASTER_ADDR       rank 0's address; unset: the one at which Slurm reaches the job's first node
#   NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME   the network, such as ib0, where nodes have one that leads nowhere

set -euo pipefail

# One hardware queue: kernels start in the order in which they were launched, so that a collective begun before a GEMM
# runs beside it.
export CUDA_DEVICE_MAX_CONNECTIONS=1
# Else each rank of a node starts as many threads as the node has cores.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
# A rank whose collective failed or ran out of time ends, without a clean-up of NCCL, which may hang: what a node's
# failure costs is then the timeout, not the rest of the allocation.
export TORCH_NCCL_ASYNC_ERROR_HANDLING=3
# Names the link or the peer that failed; silent otherwise.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
# How long an InfiniBand transfer is tried again: 4 µs × 2^22 = 17 s. A cable that flaps then costs seconds, not the run.
export NCCL_IB_TIMEOUT=${NCCL_IB_TIMEOUT:-22}

launch() {
    local run=$1
    shift
    mkdir -p "$run/logs"
    rm -f "$run/exit.json" # that of an earlier start would speak for this one
    local mark=$run/logs/$SLURM_JOB_ID.started
    : >"$mark"
    set_master_address

    # After a rank that died the others have 2 minutes to tell whom they wait for. Not --kill-on-bad-exit=1, which takes
    # a 75 for bad, and with the first rank that has left would kill those that are about to.
    local in_step=(--kill-on-bad-exit=0 --wait=120)
    # Since Slurm 22.05 srun does not inherit it.
    in_step+=(--cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")
    # A log a node, each line with its rank; a job that was requeued goes on in it.
    in_step+=(--output="$run/logs/$SLURM_JOB_ID-node%n-%N.log" --open-mode=append --label)
    local within=()
    if [[ -n ${PYXIS_IMAGE:-} ]]; then
        in_step+=(--container-image="$PYXIS_IMAGE" --container-workdir="$PWD")
        in_step+=(--container-mounts="$PWD:$PWD${CONTAINER_MOUNTS:+,$CONTAINER_MOUNTS}")
    elif [[ -n ${APPTAINER_IMAGE:-} ]]; then
        within=(apptainer exec --nv --bind "$PWD:$PWD${CONTAINER_MOUNTS:+,$CONTAINER_MOUNTS}" "$APPTAINER_IMAGE")
    fi

    echo "job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)) on $SLURM_JOB_NODELIST: $run/logs"
    local code=0
    run_step srun "${in_step[@]}" ${within[@]+"${within[@]}"} "${PYTHON:-.venv/bin/python}" "$@" \
        --save "$run" --load "$run" --exit-signal-handler || code=$?
    leave "$run" "$mark" "$code"
}

# The address at which Slurm reaches the job's first node, where rank 0 is; a node's name need not be its host's.
set_master_address() {
    [[ -z ${MASTER_ADDR:-} ]] || return 0
    local first
    read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    read -r MASTER_ADDR < <(sinfo --noheader --nodes="$first" --format=%o)
    export MASTER_ADDR
}

# Runs a command as step 0 of the job and returns its code. Slurm warns the batch shell alone (`--signal=B:USR1@...`),
# which passes the warning on to the step. bash runs a trap at once only while it waits, so the command is in the
# background; the trap ends the wait, so that it has to wait again.
run_step() {
    local code step='' warned=0
    trap 'warned=1; warn_step "$step"' USR1
    "$@" &
    step=$!
    ((warned == 0)) || warn_step "$step" # the warning came before there was a step
    while true; do
        code=0
        wait "$step" || code=$?
        ((warned)) || break
        warned=0
    done
    trap - USR1
    return "$code"
}

# The step may not be known to Slurm yet when the warning comes early.
warn_step() {
    [[ -n $1 ]] || return 0
    echo "warned by Slurm: telling the run to save and stop"
    until scancel --signal=USR1 "$SLURM_JOB_ID.0" || ! kill -0 "$1" 2>/dev/null; do
        sleep 1
    done
}

# Ends the job as its run ended.
leave() {
    local run=$1 mark=$2 code=$3
    if [[ -e $run/exit.json ]]; then
        cat "$run/exit.json"
        [[ $(<"$run/exit.json") =~ \"code\":\ *([0-9]+) ]] && code=${BASH_REMATCH[1]}
    fi
    case $code in
        75) ;;
        0 | 2) exit "$code" ;;
        *)
            if [[ -z $(find "$run" -mindepth 2 -maxdepth 2 -name manifest.json -newer "$mark" -print -quit) ]]; then
                echo "the run died with code $code before it saved a checkpoint: not requeued" >&2
                exit "$code"
            fi
            echo "the run died with code $code: requeued, to resume from its newest checkpoint" >&2
            ;;
    esac
    scontrol requeue "$SLURM_JOB_ID" || exit "$code"
    sleep 60 # Slurm ends this script, and the job with it, within seconds
}
