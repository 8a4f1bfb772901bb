"""Which parameters form a unit, and models in which a module uses parameters that are not its own."""

import contextlib
import copy
import functools
import threading

import models
import pytest
import torch
import world
import zeroshard
from reference import TOLERANCE, difference
from test_models import STAGES, WIDTH, configuration, reference_optimizer, reference_step, seeded, stack_loss
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Tied(models.Stack):
    """A weight of one block is that of another: the same tensor, or two tensors over the same memory."""

    def __init__(self, first, second, by_storage=False, recomputes=False):
        super().__init__(WIDTH, layers=4)
        weight = self.blocks[first].up.weight
        self.blocks[second].up.weight = nn.Parameter(weight.detach()) if by_storage else weight
        self.recomputes = recomputes

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        return self.head(x)


class Shared(models.Stack):
    """Two blocks have the same module."""

    def __init__(self):
        super().__init__(WIDTH, layers=4)
        self.blocks[2].up = self.blocks[0].up


class Around(nn.Module):
    """A block whose parameter is also that of a block within it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = models.Residual(WIDTH)
        self.inner.norm.weight = self.norm.weight

    def forward(self, x):
        return self.norm(x + self.inner(self.norm(x))) * self.norm.weight.sum()


class TiedToInner(models.Stack):
    def __init__(self):
        super().__init__(WIDTH)
        self.blocks = nn.ModuleList([Around(), Around()])


class Attention(models.Stack):
    """MultiheadAttention outside of the blocks: it reads the parameters of its out_proj without calling it."""

    def __init__(self):
        super().__init__(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        return super().forward(self.attention(x[None], x[None], x[None])[0][0])


class Lists(models.Stack):
    """Containers without a forward: at the root, in a block, and one in two modules."""

    def __init__(self):
        super().__init__(WIDTH)
        self.list = nn.ParameterList([torch.randn(WIDTH, WIDTH) for _ in range(2)])
        self.dict = nn.ModuleDict({"a": nn.ParameterDict({"b": torch.randn(WIDTH)})})
        self.first, self.second = Adding(self.list), Adding(self.list)

    def forward(self, x):
        for weight in self.list:
            x = torch.tanh(x @ weight) + self.dict["a"]["b"]
        return super().forward(self.second(self.first(x)))


class Adding(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.shared = shared

    def forward(self, x):
        return x + torch.tanh(x @ self.shared[1])


class Reading(models.Stack):
    """The root's forward reads a parameter of a module that it also calls."""

    def forward(self, x):
        return functional.linear(super().forward(x), self.head.weight.T) @ self.head.weight.T


class Borrowing(models.Stack):
    """Blocks read weights of the first block and of the one before, and of a module of their own without calling it."""

    def __init__(self, reentrant=None):
        super().__init__(WIDTH, layers=4)
        for before, block in zip([self.blocks[-1], *self.blocks], self.blocks, strict=False):
            object.__setattr__(block, "others", [self.blocks[0], before])
            block.own = nn.Linear(WIDTH, WIDTH)
            block.forward = functools.partial(self.borrow, block, type(block).forward)
        self.reentrant = reentrant

    @staticmethod
    def borrow(block, forward, x):
        for other in block.others:
            x = functional.linear(x, other.up.weight[:WIDTH], block.own.bias)
        return forward(block, torch.tanh(x))

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Relative(models.Stack):
    """The model reads a table, with which each block then computes, and a block that fails is done without."""

    def __init__(self):
        super().__init__(WIDTH, layers=3)
        self.table = nn.Embedding(3, WIDTH)
        self.failing = nn.ModuleList([Failing(self.table)])

    def forward(self, x):
        try:
            x = self.failing[0](x)
        except ArithmeticError:
            x = x * self.table.weight[0]
        relative = self.table.weight
        for block, row in zip(self.blocks, relative, strict=True):
            x = block(x + row)
        return self.head(x) * self.failing[0].scale.weight.sum()


class Failing(nn.Module):
    def __init__(self, table):
        super().__init__()
        object.__setattr__(self, "table", table)
        self.scale = nn.Linear(WIDTH, 1)

    def forward(self, x):
        self.scale(x + self.table.weight.sum())
        raise ArithmeticError("on every rank")


class Held:
    """As a model of a user may return: unknown to pytree."""

    def __init__(self, hidden):
        self.hidden, self.itself = {"x": [hidden], "itself": [self]}, self


class Holding(models.Residual):
    def forward(self, x):
        return Held(super().forward(x))


class Bag(dict):
    """Of a class that pytree does not know."""


class Bagging(models.Residual):
    def forward(self, x):
        return Bag(hidden=super().forward(x))


class Bags(models.Stack):
    def __init__(self):
        super().__init__(WIDTH, block=Bagging)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)["hidden"]
        return self.head(x)


class Latents(nn.Module):
    """Returns its parameter, or a view of it."""

    def __init__(self, view):
        super().__init__()
        self.table = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.view = view

    def forward(self):
        return self.table.T[None].expand(2, -1, -1) if self.view else self.table


class Lending(nn.Module):
    def __init__(self):
        super().__init__()
        self.whole, self.view = Latents(False), Latents(True)

    def forward(self):
        return self.whole(), {"view": self.view()}


class Returning(models.Stack):
    """Modules return what is theirs, some through others, used before and after blocks and in the loss's last step."""

    def __init__(self):
        super().__init__(WIDTH)
        self.lending = nn.ModuleList([Lending()])
        self.last = Latents(True)

    def forward(self, x):
        whole, views = self.lending[0]()
        last = self.last()
        x = super().forward(torch.tanh(x @ whole) + (x @ views["view"])[0])
        return x + functional.linear(x, whole[:5, :5]) + last[1, :5, 0]


class Holders(models.Stack):
    """Its blocks return objects of a class of their own."""

    def __init__(self):
        super().__init__(WIDTH, block=Holding)

    def forward(self, x):
        for block in self.blocks:
            x = block(x).hidden["x"][0]
        return self.head(x)


class Reversed(torch.autograd.Function):
    """Keeps no activations: backward computes the block again, from its parts."""

    @staticmethod
    def forward(ctx, x, block):
        ctx.block = block
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            hidden = functional.layer_norm(x, x.shape[-1:], ctx.block.norm.weight, ctx.block.norm.bias)
            (x + ctx.block.down(functional.gelu(ctx.block.up(hidden)))).backward(grad)
        return x.grad, None


class Reversible(models.Stack):
    def forward(self, x):
        x = x.clone().requires_grad_()
        for block in self.blocks:
            x = Reversed.apply(x, block)
        return self.head(x)


class Scripted(models.Stack):
    """Scripted modules, in the place of blocks and within one."""

    def __init__(self):
        super().__init__(WIDTH)
        self.blocks[0] = torch.jit.script(self.blocks[0])
        self.blocks[1].up = torch.jit.script(self.blocks[1].up)

    def __deepcopy__(self, memo):
        model = Scripted()
        model.load_state_dict(self.state_dict())
        return model


class Masked(models.Stack):
    """Writes in place to what a unit returns: a view, as a Linear makes of more than two dimensions."""

    def __init__(self):
        super().__init__(WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.filler = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        x = self.first(torch.tanh(self.first(x[None])))
        x[:, :1] = self.filler
        return super().forward(x[0])


# name -> model, zeroshard.unit_classes
CASES = {
    "tied_neighbours": (lambda: Tied(0, 1), []),
    "tied_apart": (lambda: Tied(0, 2), []),
    "tied_last": (lambda: Tied(1, 3), []),
    "tied_by_storage": (lambda: Tied(0, 2, by_storage=True), []),
    "tied_recomputed": (lambda: Tied(0, 2, recomputes=True), []),
    "shared": (Shared, []),
    "tied_to_inner": (TiedToInner, ["Around", "Residual"]),
    "attention": (Attention, []),
    "lists": (Lists, []),
    "masked": (Masked, []),
    "reading": (lambda: Reading(WIDTH), []),
    "reading_in_unit": (lambda: Reading(WIDTH), ["Reading", "Residual"]),
    "borrowing": (Borrowing, []),
    "borrowing_recomputed": (lambda: Borrowing(reentrant=False), []),
    "borrowing_recomputed_reentrant": (lambda: Borrowing(reentrant=True), []),
    "relative": (Relative, []),
    "bags": (Bags, []),
    "returning": (Returning, []),
    "returning_apart": (Returning, ["Latents", "Residual"]),
    "holders": (Holders, []),
    "reversible": (Reversible, []),
    "scripted": (Scripted, []),
    "one_unit": (lambda: Reading(WIDTH), ["Reading"]),
}


def train_cases(names):
    """On a rank: [largest difference from PyTorch, digest] by case and stage."""
    results = []
    for name in names:
        make, unit_classes = CASES[name]
        results.append([])
        for stage in STAGES:
            model = seeded(make)()
            reference = copy.deepcopy(model)
            if name == "tied_by_storage":  # the copy has two parameters in memory of their own
                reference.blocks[2].up.weight = reference.blocks[0].up.weight
            expected = reference_optimizer(reference, None)
            config = configuration(stage)
            config["zeroshard"]["unit_classes"] = unit_classes
            engine, *_ = zeroshard.initialize(model=model, config=config)
            for step in range(4):
                engine.backward(stack_loss(engine, step, world.rank()))
                engine.step()
                reference_step(reference, expected, stack_loss, step)
            if name == "tied_by_storage":
                model.blocks[2].up.weight = model.blocks[0].up.weight
            results[-1].append([difference(model, reference), engine.parameter_digest()])
    return results


@pytest.mark.parametrize("name", CASES)
def test_parameters_used_by_several_modules(name):
    for [by_stage] in world.run(2, train_cases, names=[name]):
        assert max(error for error, _ in by_stage) < TOLERANCE
        assert len({digest for _, digest in by_stage}) == 1


class Refusing(Reading):
    refuses = None

    def forward(self, x):
        output = super().forward(x)
        if self.refuses:
            raise self.refuses("on every rank")
        return output


def read_in_failed_forwards():
    """The digest by stage; and what reading says at stage 3 between forwards."""
    digests = []
    for stage in (0, 3):
        engine, *_ = zeroshard.initialize(model=seeded(lambda: Refusing(WIDTH))(), config=configuration(stage))
        for step in range(4):
            engine.module.refuses = {1: ArithmeticError, 2: KeyboardInterrupt}.get(step)
            with contextlib.suppress(ArithmeticError, KeyboardInterrupt):
                engine.backward(stack_loss(engine, step, world.rank()))
                engine.step()
        digests.append(engine.parameter_digest())
    with torch.no_grad():
        stack_loss(engine, 0, world.rank())
    try:
        engine.module.head.weight.sum()
    except RuntimeError as error:
        return [*digests, str(error)]


def test_parameters_read_in_forwards_that_fail():
    for zero, three, message in world.run(2, read_in_failed_forwards):
        assert zero == three
        assert "'head.weight' is sharded" in message


class Observed(models.Stack):
    """Rank 0 has a thread that looks at the model while it computes."""

    def forward(self, x):
        shapes = []
        if world.rank() == 0:
            thread = threading.Thread(target=lambda: shapes.append(self.head.weight.shape))
            thread.start()
            thread.join()
        return super().forward(x)


def train_observed():
    engine, *_ = zeroshard.initialize(model=seeded(lambda: Observed(WIDTH))(), config=configuration(3))
    for step in range(2):
        engine.backward(stack_loss(engine, step, world.rank()))
        engine.step()
    return engine.global_steps


def test_what_another_thread_looks_at_is_not_gathered():
    assert world.run(2, train_observed) == [2, 2]


class Kept(models.Stack):
    """The forward has a parameter that it does not ask a module for."""

    def __init__(self):
        super().__init__(WIDTH)
        self.kept = [self.head.weight]

    def forward(self, x):
        return super().forward(x) @ self.kept[0]


def error_of_reading():
    engine, *_ = zeroshard.initialize(model=seeded(Kept)(), config=configuration(3))
    try:
        stack_loss(engine, 0, world.rank())
    except RuntimeError as error:
        return str(error)


def test_reading_a_parameter_without_its_module_says_what_to_do():
    for message in world.run(2, error_of_reading):
        assert "'head.weight' is sharded: outside of forward, read it inside `with zeroshard.gathered(...)`" in message
        assert "name in zeroshard.unit_classes a class whose modules contain both" in message


class Aside(models.Residual):
    """Keeps a loss of its own in an attribute: no hook sees it."""

    def forward(self, x):
        y = super().forward(x)
        self.aside = self.up(torch.tanh(self.up(y)[:, :WIDTH])).square().mean()
        return y


class Asides(models.Stack):
    def __init__(self):
        super().__init__(WIDTH, block=Aside)

    def forward(self, x):
        return super().forward(x) + sum(block.aside for block in self.blocks)


def train_asides(unit_classes):
    config = configuration(3)
    config["zeroshard"]["unit_classes"] = unit_classes
    engine, *_ = zeroshard.initialize(model=seeded(Asides)(), config=config)
    try:
        engine.backward(stack_loss(engine, 0, world.rank()))
        engine.step()
    except zeroshard.StateError as error:
        return str(error)
    return engine.global_steps


def test_what_a_module_gives_unseen_says_what_to_do():
    for message in world.run(2, train_asides, unit_classes=[]):
        assert "name in zeroshard.unit_classes a class of module that contains all who use it" in message
    assert world.run(2, train_asides, unit_classes=["Asides"]) == [1, 1]


def test_parameters_that_share_some_memory_are_refused():
    model = models.Stack(WIDTH)
    weight = model.blocks[0].up.weight.detach()
    model.part = nn.Parameter(weight[1:2])
    with pytest.raises(ValueError, match="'blocks.0.up.weight' and 'part' share memory, but are not the same elements"):
        zeroshard.find_units(model)
    del model.part
    model.part = nn.Linear(1, 1)
    model.part.weight = nn.Parameter(weight.T)
    with pytest.raises(ValueError, match="'blocks.0.up.weight' and 'part.weight' share memory"):
        zeroshard.find_units(model)
    whole = torch.randn(2, 6)
    del model.part
    model.left, model.right = nn.Parameter(whole[:, :3]), nn.Parameter(whole[:, 3:])
    zeroshard.find_units(model)


def test_a_scripted_model_is_refused():
    with pytest.raises(ValueError, match="the model is a scripted module, which takes no hooks"):
        zeroshard.find_units(torch.jit.script(models.Residual(WIDTH)))


def units_of(model, unit_classes=()):
    return {
        unit.name: [unit.modules, [p.names[0] for p in unit.params]]
        for unit in zeroshard.find_units(model, unit_classes)
    }


def test_a_unit_is_around_a_module_with_a_forward():
    model = Lists()
    units = units_of(model)
    assert units["root"] == [[model, model.first, model.second], ["list.0", "list.1", "dict.a.b"]]
    model = Attention()
    attention = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    assert units_of(model)["attention"] == [[model.attention], [f"attention.{name}" for name in attention]]


def test_elements_without_a_forward_are_no_blocks():
    model = models.Stack(WIDTH)
    model.lists = nn.ModuleList([nn.ParameterList([torch.ones(2)]), nn.ModuleList([nn.Linear(2, 2)])])
    assert units_of(model)["root"] == [[model], ["lists.0.0"]]
    assert "lists.1.0" in units_of(model)
    with pytest.raises(ValueError, match="names \\['ParameterList'\\], but the model has no such module"):
        units_of(model, ["ParameterList"])


def test_a_module_of_two_blocks_belongs_to_the_first():
    model = Shared()
    units = units_of(model)
    assert units["blocks.0"][0] == [model.blocks[0], model.blocks[0].up]
    assert units["blocks.2"][1] == [f"blocks.2.{n}" for n in ("norm.weight", "norm.bias", "down.weight", "down.bias")]
