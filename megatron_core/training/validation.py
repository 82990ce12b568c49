# SPDX-License-Identifier: Apache-2.0
"""Validation: the forwards of the pipeline over a finite set, each token counted once at every layout."""

import torch

from megatron_core.data.sample import ValidationData
from megatron_core.data.sampler import validation_steps
from megatron_core.parallel.collectives import all_reduce
from megatron_core.training.build import Run
from megatron_core.training.metrics import ValidationMetrics
from megatron_core.training.run_data import open_source
from megatron_core.training.state import RunState
from megatron_core.training.stop import Stop, StopRequests, ask_all
from megatron_core.training.train_step import counts_loss


def validate(
    run: Run, state: RunState, name: str, samples: ValidationData, requests: StopRequests
) -> ValidationMetrics | Stop:
    """One pass over a set, broken off where some rank is asked to stop. All ranks must call."""
    measured = validate_set(run, samples, requests)
    if isinstance(measured, Stop):
        return measured
    loss, tokens = measured
    return ValidationMetrics(
        step=state.step,
        consumed_samples=state.consumed_samples,
        consumed_tokens=state.consumed_samples * run.config.model.seq_length,
        validation_loss=loss,
        validation_tokens=tokens,
        validation_set=name,
    )


@torch.no_grad()
def validate_set(run: Run, samples: ValidationData, requests: StopRequests) -> tuple[float, int] | Stop:
    """Mean loss over all unmasked target tokens of the set, and their number. The same on every rank."""
    config, ctx = run.config, run.ctx
    plans = list(
        validation_steps(
            samples.num_samples,
            global_batch_size=run.batch_schedule.largest,
            micro_batch_size=config.training.micro_batch_size,
            dp_size=ctx.dp.size,
            dp_coordinate=ctx.dp.coordinate,
        )
    )
    sums = torch.zeros(2, dtype=torch.float64, device=ctx.device)
    source = open_source(config, ctx, run.data, samples, iter(plans))
    try:
        for plan in plans:
            # A pass may take longer than a scheduler gives between its warning and its kill.
            if (stop := ask_all(requests, ctx)) is not None:
                return stop
            result = run.runtime.run(run.programs.evaluation(len(plan)), source.step(plan, None), loss_weight=0.0)
            if counts_loss(ctx):
                sums += torch.stack([result.loss_sum, result.token_count])
    finally:
        source.close()
    loss_sum, tokens = all_reduce(sums, ctx.world).tolist()
    return (loss_sum / tokens if tokens else float("nan")), int(tokens)
