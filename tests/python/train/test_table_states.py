"""States of the user's own optimizer that are no value per element: saved, and loaded where stretches are the same."""

import importlib.util

import models
import pytest
import torch
import world
import zeroshard


class Coded(torch.optim.Optimizer):
    """SGD with momentum in 8-bit codes, one scale per 64 elements and a table; small stretches keep fp32."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for param in (param for group in self.param_groups for param in group["params"]):
            if param.grad is None:
                continue
            state, table = self.state[param], torch.linspace(-1, 1, 255)
            blocks = -(-param.numel() // 64)
            if param.numel() < 100:
                state.setdefault("momentum", torch.zeros_like(param)).mul_(0.9).add_(param.grad)
                param.sub_(0.1 * state["momentum"])
                continue
            if "scales" not in state:
                state["momentum"] = torch.full((param.numel(),), 127, dtype=torch.uint8)
                state["scales"], state["table"] = torch.zeros(blocks), table
            scales = state["scales"].repeat_interleave(64)[: param.numel()]
            momentum = 0.9 * state["table"][state["momentum"].long()] * scales + param.grad
            padded = torch.nn.functional.pad(momentum, (0, blocks * 64 - param.numel())).view(blocks, 64)
            state["scales"].copy_(padded.abs().amax(1).clamp(min=1e-20))
            scales = state["scales"].repeat_interleave(64)[: param.numel()]
            state["momentum"].copy_(((momentum / scales + 1) * 127).round().to(torch.uint8))
            param.sub_(0.1 * momentum)


class AdamW(Coded):
    """Another package's, by a name of torch's."""


def optimizer_of(kind, model):
    if kind in ("own", "AdamW"):
        return {"own": Coded, "AdamW": AdamW}[kind](model.parameters())
    import bitsandbytes

    return getattr(bitsandbytes.optim, kind)(model.parameters(), lr=1e-2, min_8bit_size=100)


def layers():
    """A model whose parameters ranks cut at blocks of 1024: some stretches are long, and some have few elements."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(10, 110), torch.nn.Tanh(), torch.nn.Linear(110, 37), torch.nn.Tanh())


def train_with_tables(folder, stage, kind, load, steps):
    model = layers()
    config = models.configuration(stage) | {"zero_allow_untested_optimizer": True}
    engine, *_ = zeroshard.initialize(model=model, config=config, optimizer=optimizer_of(kind, model))
    if load:
        engine.load_checkpoint(folder)
    losses = []
    for _ in range(steps):
        torch.manual_seed(engine.global_steps)
        loss = engine(torch.randn(2, 10)).pow(2).mean()
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
        if engine.global_steps == 3 and not load:
            engine.save_checkpoint(folder)
            engine.wait_for_checkpoint()
    return losses


KINDS = ["own", "AdamW", *(("RMSprop8bit",) if importlib.util.find_spec("bitsandbytes") else ())]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 1), (3, 3)])
def test_tables_and_scales_are_saved_and_loaded_at_the_same_ranks(tmp_path, ranks, stage, kind):
    case = {"folder": str(tmp_path), "stage": stage, "kind": kind}
    whole = world.run_ranks(ranks, train_with_tables, **case, load=False, steps=6)
    resumed = world.run_ranks(ranks, train_with_tables, **case, load=True, steps=3)
    for one, other in zip(whole, resumed, strict=True):
        assert one.error is None and other.error is None, (one.error, other.error)
        assert other.value == one.value[3:]
    told = "has states with other than a value per element"
    assert [rank.log.count(told) for rank in whole] == [1] + [0] * (ranks - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_other_stretches_are_refused_on_all_ranks(tmp_path, kind):
    case = {"folder": str(tmp_path), "kind": kind}
    for rank in world.run_ranks(2, train_with_tables, **case, stage=2, load=False, steps=3):
        assert rank.error is None, rank.error
    for rank in world.run_ranks(3, train_with_tables, **case, stage=2, load=True, steps=3):
        assert "cannot be cut anew: load it with as many ranks and the stage that saved it" in rank.error


def test_whole_parameters_have_the_same_stretches_on_any_number_of_ranks(tmp_path):
    case = {"folder": str(tmp_path), "stage": 0, "kind": "own"}
    for ranks, load in ((2, False), (3, True)):
        for rank in world.run_ranks(ranks, train_with_tables, **case, load=load, steps=3):
            assert rank.error is None, rank.error


def test_low_bit_optimizers_of_torchao_are_refused_at_initialize():
    """A class of the test's own stands in for torchao's, which the check knows by module and name."""
    kind = type("AdamW4bit", (torch.optim.Optimizer,), {"__module__": "torchao.optim.adam", "step": lambda self: None})
    model = layers()
    config = models.configuration(0) | {"zero_allow_untested_optimizer": True}
    with pytest.raises(ValueError, match="keeps its states 'exp_avg' and 'exp_avg_sq'.*bitsandbytes"):
        zeroshard.initialize(model=model, config=config, optimizer=kind(model.parameters(), {"lr": 0.1}))
