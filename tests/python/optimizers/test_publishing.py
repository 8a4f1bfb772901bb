"""Optimizers outside of the core that write weights between steps: every rank then has what PyTorch has."""

import contextlib
import copy
import functools
import pickle

import models
import pytest
import torch
import world
import zeroshard
from safetensors.torch import load_file
from zeroshard.compat import deepspeed as compat


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

    @property
    def averaged(self):
        """Whether the parameters are the average now."""
        return getattr(self, "_is_averaged", False)

    @averaged.setter
    def averaged(self, value):
        if value != self.averaged:
            self._is_averaged = value
            self._swap()

    @contextlib.contextmanager
    def average(self):
        self._swap()
        try:
            yield self
        finally:
            self._swap()

    def swaps(self):
        while True:
            self._swap()
            yield

    def __enter__(self):
        self._swap()
        return self

    def __exit__(self, *error):
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


loss_of = functools.partial(models.batch_loss, width=64)


def train_averaged(stage, dtype, directory):
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
    for off in world.run(3, train_averaged, stage=stage, dtype=dtype, directory=str(tmp_path)):
        assert max(off.values()) < (1e-5 if dtype == "fp32" else 3e-2), off


def by_property(optimizer, swaps):
    optimizer.averaged = not optimizer.averaged


def by_generator(optimizer, swaps):
    next(swaps.setdefault("by", optimizer.swaps()))


def by_context(optimizer, swaps):
    """Begins a ``with`` statement, or ends it."""
    swaps.pop("by").close() if swaps else swaps.setdefault("by", contextlib.ExitStack()).enter_context(optimizer)


def by_context_of_a_method(optimizer, swaps):
    by_context(optimizer if swaps else optimizer.average(), swaps)


WAYS = [by_property, by_generator, by_context, by_context_of_a_method]


def swap(stage, way):
    """How far all parameters are from PyTorch's behind each of three swaps, and what became of the optimizer."""
    plain = copy.deepcopy(model := models.stack(width=64))
    own, reference = Averaged(model.parameters()), Averaged(plain.parameters())
    config = models.configuration(stage, gradient_clipping=0, zero_allow_untested_optimizer=True)
    engine, *_ = zeroshard.initialize(model=model, optimizer=own, config=config)
    off, swaps = [], ({}, {})
    for step in range(4):
        engine.backward(loss_of(engine, step))
        engine.step()
        reference.zero_grad()
        loss_of(plain, step).backward()
        reference.step()
        way(own, swaps[0]), way(reference, swaps[1])
        with zeroshard.gathered(list(model.parameters())):
            pairs = zip(model.parameters(), plain.parameters(), strict=True)
            off.append(max(float((mine - other).detach().abs().max()) for mine, other in pairs))
    copied = [type(copy.deepcopy(own)) is Averaged, type(pickle.loads(pickle.dumps(own))) is Averaged]
    engine.destroy()
    return off, [isinstance(own, Averaged), *copied, type(own) is Averaged]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_weights_that_are_written_in_other_ways_than_by_a_call_are_everywhere(stage, way):
    for off, kept in world.run(3, swap, stage=stage, way=way):
        assert max(off) < 1e-5 and all(kept), (off, kept)


class Phased(Averaged):
    """Has settings of its own, which ``step()`` reads; and its class refuses subclasses without a tag."""

    ends = 0
    phase = 1
    _kept = 3

    def __init_subclass__(cls, *, tag, **others):
        super().__init_subclass__(**others)

    def __del__(self):
        Phased.ends += 1

    def step(self, closure=None):
        self.phases = [*getattr(self, "phases", []), (self.phase, vars(self).get("seen"), self._kept)]
        return super().step(closure)

    def set_phase(self, phase):
        self.phase = phase
        self._kept = phase


def through_the_front(stage):
    """What ``step()`` reads, what the front and the script's object say, and how far weights are from PyTorch's."""
    plain = copy.deepcopy(model := models.stack(width=64))
    own, reference = Phased(model.parameters()), Averaged(plain.parameters())
    config = models.configuration(stage, gradient_clipping=0, zero_allow_untested_optimizer=True)
    engine, front, *_ = compat.initialize(model=model, optimizer=own, config=config)
    off = []
    for step in range(4):
        if step == 1:
            front.set_phase(2)
            front.seen = "yes"
        if step == 2:
            front.phase = 4
            front._kept = 5
        engine.backward(loss_of(engine.module, step))
        engine.step()
        reference.zero_grad()
        loss_of(plain, step).backward()
        reference.step()
        for each in (front, reference):
            if step == 1:
                each.averaged = True
            elif step == 2:
                each.averaged = False
                with each, each.average():
                    pass
                each.__enter__()
            else:
                next(each.swaps())
        with zeroshard.gathered(list(model.parameters())):
            pairs = zip(model.parameters(), plain.parameters(), strict=True)
            off.append(max(float((mine - other).detach().abs().max()) for mine, other in pairs))
    answers = [front.phase, own.phase, front.seen, front.averaged, own.averaged, isinstance(front, Phased)]
    del front.seen
    answers += [hasattr(own, "seen"), hasattr(front, "other"), Phased.ends]
    copy.copy(front)
    engine.destroy()
    return own.phases, answers, off


def test_the_front_of_the_scripts_class_acts_on_the_scripts_object():
    for phases, answers, off in world.run(3, through_the_front, stage=0):
        assert phases == [[1, None, 3], [2, "yes", 2], [4, "yes", 5], [4, "yes", 5]]
        assert answers == [4, 4, "yes", False, False, True, False, False, 0]
        assert max(off) < 1e-5


def swap_alone(stage):
    engine, front, *_ = zeroshard.initialize(
        model=models.stack(width=64),
        optimizer=Averaged,
        config=models.configuration(stage, gradient_clipping=0, zero_allow_untested_optimizer=True),
    )
    for step in range(2):
        engine.backward(loss_of(engine, step))
        engine.step()
    if world.rank() == 1:
        front.eval()
    engine.backward(loss_of(engine, 2))


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_method_that_writes_on_one_rank_alone_is_an_error(stage):
    for rank in world.run_ranks(2, swap_alone, stage=stage):
        assert "ranks disagree" in rank.error and "weights that the optimizer has written" in rank.error
