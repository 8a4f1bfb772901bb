"""Updates that the host makes while the device computes the next step (``zeroshard.offload.delayed_update``)."""

import devices
import models
import pytest
import simulated
import test_offload
import torch
import world
import zeroshard
from test_swap_files import WIDTH
from zeroshard.compat.deepspeed import initialize

ON_DEVICES = [pytest.param("lazy", marks=simulated.needed), devices.CUDA]
CLIP, LR, STEPS = 0.5, 1e-2, 5
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def batch(step):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))


def loss_of_step(model, step, dtype):
    inputs = batch(step).to(next(model.parameters()).device, DTYPES[dtype])
    return model(inputs).float().square().mean()


def make_delayed_engine(stage, dtype, states, **blocks):
    model = models.stack(width=WIDTH).to(world.device())
    zero = {"offload_optimizer": test_offload.FILE if states == "nvme" else {"device": states}}
    blocks = {"zero_optimization": zero, "gradient_clipping": CLIP, **blocks}
    blocks["zeroshard"] = {"offload": {"delayed_update": True}}
    config = models.configuration(stage, dtype, optimizer=models.adamw(LR, weight_decay=0.01), **blocks)
    return model, initialize(model=model, config=config)[0]


def train_on_batches(engine, steps, dtype):
    losses = []
    for step in steps:
        loss = loss_of_step(engine, step, dtype)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def publish(engine):
    with zeroshard.gathered(list(engine.module.parameters())[:1], modify_rank=0):
        pass


def plain():
    """The definition in plain torch: gradients of the weights before the last update. Losses, and the weights."""
    model = models.stack(width=WIDTH)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=LR, weight_decay=0.01)
    published = [param.detach().clone() for param in params]
    updated, losses = published, []

    def become(values):
        with torch.no_grad():
            for param, value in zip(params, values, strict=True):
                param.copy_(value)

    for step in range(STEPS):
        become(published)
        loss = loss_of_step(model, step, "fp32")
        loss.backward()
        become(updated)
        torch.nn.utils.clip_grad_norm_(params, CLIP)
        optimizer.step()
        optimizer.zero_grad()
        published, updated = updated, [param.detach().clone() for param in params]
        losses.append(loss.item())
    return losses, updated


def runs(dtype):
    ends = []
    for stage in (1, 2, 3):
        for states in ("cpu", "nvme"):
            model, engine = make_delayed_engine(stage, dtype, states)
            losses = train_on_batches(engine, range(STEPS), dtype)
            late = engine.parameter_digest()
            publish(engine)
            report = engine.memory_report()
            assert models.held_as_planned(report["planned"], report["measured_peak"]), report
            assert engine.parameter_digest() != late
            ends.append((losses, late, engine.parameter_digest()))
            if dtype == "fp32":
                expected, weights = plain()
                torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
                params = list(model.parameters())
                with zeroshard.gathered(params):
                    for param, weight in zip(params, weights, strict=True):
                        # Where a gradient is nearly 0, Adam makes a step of its rounding.
                        torch.testing.assert_close(param.detach().cpu(), weight, rtol=1e-4, atol=LR / 10)
            engine.destroy()
    return ends


@pytest.mark.parametrize(
    "ranks,dtype,on",
    [
        pytest.param(ranks, dtype, on, marks=marks)
        for ranks, dtype, on, marks in [
            (1, "fp32", "lazy", simulated.needed),
            (2, "bf16", "late", simulated.needed),
            (1, "fp32", "cuda", devices.NEEDS_GPU),
            (2, "bf16", "cuda", devices.NEEDS_GPU),
        ]
    ],
)
def test_one_result_at_every_stage_and_tier(ranks, dtype, on):
    """It has the losses of plain torch that computes as the definition says; 1e-5 in fp32."""
    ends = [end for of_rank in world.run(ranks, runs, dtype=dtype, on=on, timeout_s=240) for end in of_rank]
    assert all(end == ends[0] for end in ends)


def go_on(folder, stage, dtype):
    """A run that saves, goes on and ends; and one that loads while an update of its own is pending."""
    ends = []
    for states in ("cpu", "nvme"):
        _, engine = make_delayed_engine(stage, dtype, states)
        if not ends:
            train_on_batches(engine, range(2), dtype)
            engine.save_checkpoint(folder)
        else:
            train_on_batches(engine, range(7, 8), dtype)
            engine.load_checkpoint(folder)
        saved = engine.parameter_digest()
        losses = train_on_batches(engine, range(2, STEPS), dtype)
        engine.save_checkpoint(f"{folder}/{states}")  # publishes
        ends.append((saved, losses, engine.parameter_digest()))
        engine.destroy()
    return ends


@pytest.mark.parametrize("ranks,stage,dtype", [(1, 3, "bf16"), (2, 2, "fp32")])
@pytest.mark.parametrize("on", ON_DEVICES)
def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path, ranks, stage, dtype, on):
    arguments = {"folder": str(tmp_path), "stage": stage, "dtype": dtype}
    ends = [end for of_rank in world.run(ranks, go_on, **arguments, on=on, timeout_s=240) for end in of_rank]
    assert all(end == ends[0] for end in ends)


def write_late():
    model, engine = make_delayed_engine(1, "bf16", "cpu")
    train_on_batches(engine, range(2), "bf16")
    if world.rank() == 0:
        next(model.parameters()).data.fill_(0.25)
    engine.backward(loss_of_step(engine, 2, "bf16"))
    with pytest.raises(zeroshard.StateError, match="delayed_update") as caught:
        engine.step()
    return str(caught.value)


@pytest.mark.parametrize("on", ON_DEVICES)
def test_a_write_that_would_be_lost_is_refused_on_every_rank(on):
    texts = world.run(2, write_late, on=on, timeout_s=120)
    assert all("zeroshard.gathered(..., modify_rank=0)" in text for text in texts)


def end(stage):
    """What the module has when the engine ends: after two whole steps, and after one micro-batch more."""
    ends = []
    for more in (0, 1):
        model, engine = make_delayed_engine(stage, "bf16", "cpu", accumulation=2)
        for micro in range(4 + more):
            engine.backward(loss_of_step(engine, micro, "bf16"))
            engine.step()
        engine.destroy()
        ends.append([param.detach().float().cpu().tolist() for param in model.parameters()])
    return ends


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("on", ON_DEVICES)
def test_a_module_has_the_last_update_when_its_engine_ends(stage, on):
    for whole, with_a_rest in world.run(2, end, stage=stage, on=on, timeout_s=120):
        assert whole == with_a_rest


def on_the_cpu():
    with pytest.raises(zeroshard.ConfigError, match="delayed_update = true") as caught:
        make_delayed_engine(2, "bf16", "cpu")
    return str(caught.value)


def test_ranks_on_the_cpu_refuse_it():
    (text,) = world.run(1, on_the_cpu)
    assert "set false" in text
