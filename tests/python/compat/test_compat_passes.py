"""Backward passes of scripts for DeepSpeed that are reduced together."""

import contextlib
from functools import partial

import models
import pytest
import torch
import world
from deepspeed_engines import make
from errors import message_of
from zeroshard.compat import fragments


def coalesced(stage, dtype):
    """Of runs whose passes are reduced together, and each: the digests, and how far the weights are from one another.

    Also how far the run has moved them, and what is refused.
    """
    digests, weights, said = [], [], []
    start = torch.cat([param.detach().reshape(-1) for param in models.stack().parameters()])
    for together in (True, False):
        engine = make(stage, accumulation=3, dtype=dtype)
        for step in range(2):
            if together:
                with engine.coalesce_grad_reduction():
                    for micro in range(3):
                        engine.set_gradient_accumulation_boundary(micro == 2)
                        engine.backward(models.part_loss(engine, step, micro))
                    said.append(message_of(engine.step))
                    said.append(message_of(engine.coalesce_grad_reduction().__enter__))
                grad = fragments.safe_get_full_grad(engine.module.head.weight)
                assert grad is not None and grad.norm() > 0
            else:
                for micro in range(3):
                    engine.set_gradient_accumulation_boundary(micro == 2)
                    engine.backward(models.part_loss(engine, step, micro))
            engine.step()
        assert engine.global_steps == 2
        digests.append(engine.parameter_digest())
        params = [fragments.safe_get_full_fp32_param(param).reshape(-1) for param in engine.module.parameters()]
        weights.append(torch.cat(params))
        engine.destroy()
    together, apart = weights
    return digests, (together - apart).abs().max().item(), (apart - start).abs().max().item(), said


@pytest.mark.parametrize("ranks,stage,dtype", [(1, 0, "fp32"), (2, 1, "fp32"), (2, 2, "bf16"), (3, 3, "fp32")])
def test_passes_are_reduced_together(ranks, stage, dtype):
    for (together, apart), difference, moved, said in world.run(ranks, coalesced, stage=stage, dtype=dtype):
        assert moved > 1.5e-2  # by two steps of 1e-2
        assert together == apart or ranks > 1
        # fp32: sums of the same numbers in another order. bf16: a gradient of 0.05 that rounds otherwise three times is
        # off by 3e-4, and AdamW multiplies that by a rate of 1e-2 over an eps of 1e-3.
        assert difference < (1e-6 if dtype == "fp32" else 3e-3)
        assert all("no_sync" in text for text in said) and len(said) == 4, said


def sums(stage):
    """The largest difference of a gradient that was reduced once from the one that was reduced each time."""
    grads = []
    for together in (True, False):
        engine = make(stage, accumulation=2)
        with engine.coalesce_grad_reduction() if together else contextlib.nullcontext():
            for micro in range(2):
                engine.backward(models.part_loss(engine, 0, micro))
            local = message_of(partial(fragments.safe_get_full_grad, engine.module.head.weight))
            assert local is None or (together and "on this rank only" in local), local
        grads.append([fragments.safe_get_full_grad(param) for param in engine.module.parameters()])
        engine.destroy()
    return max((a - b).abs().max().item() for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_sum_is_that_of_single_reductions(stage):
    assert max(world.run(2, sums, stage=stage)) < 1e-7  # fp32 sums of the same numbers in another order
