"""Optimizers outside of the core that write weights between steps: every rank then has what PyTorch has."""

import copy

import models
import pytest
import torch
import world
import zeroshard
from safetensors.torch import load_file


class Averaged(torch.optim.Optimizer):
    """SGD with an average of its weights, which ``eval()`` puts into the parameters and ``train()`` takes out."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        self.calls = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.helper()
        for param in self._params():
            if param.grad is not None:
                param.data.add_(param.grad, alpha=-self.param_groups[0]["lr"])
                average = self.state[param].setdefault("average", param.detach().clone())
                average.lerp_(param, 0.3)

    def helper(self):
        """Called within step(): publishes nothing by itself."""
        self.calls += 1

    @torch.no_grad()
    def eval(self):
        self._swap()

    @torch.no_grad()
    def train(self):
        self._swap()

    def steps_so_far(self):
        return self.calls

    def _params(self):
        return (param for group in self.param_groups for param in group["params"])

    def _swap(self):
        for param in self._params():
            if "average" in self.state[param]:
                weights = param.detach().clone()
                param.data.copy_(self.state[param]["average"])  # without a new version
                self.state[param]["average"].copy_(weights)


def loss_of(model, step):
    x, y = models.vectors(step, 0, 2 * world.size(), 64)
    if isinstance(model, zeroshard.Engine):
        x, y = (models.share(each, world.rank(), world.size()) for each in (x, y))
        x = x.to(next(model.module.parameters()).dtype)
    return torch.nn.functional.mse_loss(model(x).float(), y)


def train(stage, dtype, directory):
    plain = copy.deepcopy(model := models.stack(width=64))
    own = Averaged(model.parameters())
    config = models.configuration(stage, dtype, gradient_clipping=0, zero_allow_untested_optimizer=True)
    engine, front, *_ = zeroshard.initialize(model=model, optimizer=own, config=config)
    reference = Averaged(plain.parameters())
    off = {}

    def look(when):
        with zeroshard.gathered(list(model.parameters())):
            pairs = zip(model.parameters(), plain.parameters(), strict=True)
            off[when] = max(float((mine.float() - other).detach().abs().max()) for mine, other in pairs)

    for step in range(5):
        if step == 3:
            front.eval(), reference.eval()
            engine.eval()
            look("averaged")
            x, _ = models.vectors(9, 0, 2, 64)
            with torch.no_grad():
                out = engine(x.to(next(model.parameters()).dtype))
            off["output"] = float((out.float() - plain(x)).abs().max())
            engine.save_16bit_model(directory, "model.safetensors")
            saved = load_file(f"{directory}/model.safetensors")
            named = plain.named_parameters()
            off["saved"] = max(float((saved[name].float() - param.detach()).abs().max()) for name, param in named)
            own.train(), reference.train()
            engine.train()
            look("trained on")
        engine.backward(loss_of(engine, step))
        engine.step()
        reference.zero_grad()
        loss_of(plain, step).backward()
        reference.step()
    if world.rank() == 0:  # writes nothing: one rank alone may call it
        assert own.steps_so_far() == 5
    look("end")
    engine.destroy()
    assert "eval" not in vars(own)
    return off


def evaluate_in_turns():
    """How many of a hundred evaluations, each right after a swap, had other weights than the first of their kind."""
    engine, front, *_ = zeroshard.initialize(
        model=models.stack(width=64),
        optimizer=Averaged,
        config=models.configuration(3, gradient_clipping=0, zero_allow_untested_optimizer=True),
    )
    for step in range(2):
        engine.backward(loss_of(engine, step))
        engine.step()
    x, _ = models.vectors(9, 0, 2, 64)
    outputs = []
    with torch.no_grad():
        for _ in range(50):
            for swap in (front.eval, front.train):
                swap()
                outputs.append(engine(x))
    return sum(not torch.equal(output, outputs[number % 2]) for number, output in enumerate(outputs))


def test_no_rank_reads_weights_that_are_being_swapped():
    assert world.run(3, evaluate_in_turns) == [0, 0, 0]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_an_average_that_is_swapped_in_is_everywhere(stage, dtype, tmp_path):
    for off in world.run(3, train, stage=stage, dtype=dtype, directory=str(tmp_path)):
        assert max(off.values()) < (1e-5 if dtype == "fp32" else 3e-2), off
