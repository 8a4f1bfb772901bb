"""``deepspeed.zero.Init`` and ``GatheredParameters``: sharded parameters before, inside and after an engine."""

import contextlib
import copy
import pickle
import tempfile
from unittest import mock

import models
import pytest
import simulated
import torch
import world
import zeroshard
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from zeroshard import making
from zeroshard.compat import leaf_modules, zero

HIDDEN = 47  # no number of ranks divides it, and each of three ranks owns a part of a block


class Block(nn.Module):
    def __init__(self, width=HIDDEN):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return torch.tanh(self.inner(x)) * self.scale


class Model(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(11, HIDDEN)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(HIDDEN, 11, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.register_buffer("offset", torch.full((1,), 0.5))

    def forward(self, ids):
        x = self.embedding(ids) + self.offset
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def values_of(module):
    with zero.GatheredParameters(module.parameters()):
        return {name: param.tolist() for name, param in module.named_parameters()}


def expected(build=Model, seed=0):
    torch.manual_seed(seed)
    return {name: param.tolist() for name, param in build().named_parameters()}


def build(rank_seeds=True, build=Model, **arguments):
    import torch.distributed as dist

    zeroshard.init_distributed(world.device())
    torch.manual_seed(dist.get_rank() if rank_seeds else 0)
    with zero.Init(**arguments):
        return build()


# -- Init ------------------------------------------------------------------------------------------------------------


def _init():
    model = build()
    ranks = torch.distributed.get_world_size()
    for name, param in model.named_parameters():
        assert isinstance(param, nn.Parameter) and param.requires_grad, name
        for read in (lambda param: param.sum(), lambda param: param.data.view(-1)[0] + 1, lambda param: param.fill_(0)):
            with torch.no_grad(), pytest.raises(RuntimeError, match="is sharded: make it whole"):
                read(param)
        assert param.ds_status is zero.ZeroParamStatus.NOT_AVAILABLE, name
        assert tuple(param.ds_shape) == tuple(param.shape) and param.ds_numel == param.numel(), name
        assert param.ds_tensor.numel() == -(-param.numel() // ranks), name
    assert model.offset.item() == 0.5
    ids = [param.ds_id for param in model.parameters()]
    assert len(set(ids)) == len(ids)
    assert Block.__init__.__name__ == "__init__" and not hasattr(Block.__init__, "__wrapped__"), "Init is still active"
    return values_of(model)


@pytest.mark.parametrize(
    "ranks,on",
    [(1, None), (2, None), (3, None), (4, None), simulated.case(3, "lazy")],
    ids=["1", "2", "3", "4", "3-lazy"],
)
def test_each_rank_keeps_a_piece_of_the_values_of_rank_zero(ranks, on):
    assert world.run(ranks, _init, on=on) == [expected()] * ranks


def _init_of_a_model_that_is_there():
    import torch.distributed as dist

    zeroshard.init_distributed(world.device())
    torch.manual_seed(dist.get_rank())
    model = Model()
    zero.Init(module=model)
    zero.Init(module=model)  # a second time nothing is left to do
    assert all(param.ds_status is zero.ZeroParamStatus.NOT_AVAILABLE for param in model.parameters())
    return values_of(model)


def test_a_model_that_is_there_is_cut():
    assert world.run(2, _init_of_a_model_that_is_there) == [expected()] * 2


def _dtype():
    config = {"bf16": {"enabled": True}, "train_batch_size": "auto"}
    model = build(config_dict_or_path=config)
    assert {param.dtype for param in model.parameters()} == {torch.bfloat16}
    assert {param.ds_tensor.dtype for param in model.parameters()} == {torch.bfloat16}
    assert {param.dtype for param in build(dtype=torch.float64).parameters()} == {torch.float64}
    assert {param.dtype for param in build(config_dict_or_path={"bf16": {"enabled": "auto"}}).parameters()} == {
        torch.float32
    }
    plain = build(enabled=False)
    assert not any(hasattr(param, "ds_id") for param in plain.parameters())
    for wrong in ({"remote_device": "nvme"}, {"dtype": torch.int32}, {"mpu": object()}, {"config_dict_or_path": "{"}):
        with pytest.raises((zeroshard.ConfigError, ValueError)):
            zero.Init(**wrong)


def test_the_configuration_gives_the_dtype():
    world.run(2, _dtype)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.second = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.second.weight = nn.Parameter(self.first.weight.data)  # has no memory here
        values = torch.rand(HIDDEN)
        self.left, self.right = nn.Parameter(values), nn.Parameter(values)

    def forward(self, x):
        return self.second(self.first(x)) * self.left + self.right


def _ties():
    model = build(build=lambda: Model(tied=True))
    assert model.head.weight is model.embedding.weight
    tied = build(build=Tied)
    with zero.GatheredParameters([tied.second.weight, tied.left], modifier_rank=0):
        assert tied.first.weight.data_ptr() == tied.second.weight.data_ptr()
        tied.second.weight.data.fill_(torch.distributed.get_rank() + 3)
        tied.left.data.fill_(2)
    with zero.GatheredParameters(tied.parameters()):
        assert (tied.first.weight == 3).all() and (tied.right == 2).all()
    engine, *_ = zeroshard.initialize(model=tied, config=models.configuration(optimizer=models.adamw()))
    engine.backward(engine(torch.ones(1, HIDDEN)).sum())
    engine.step()
    with zeroshard.gathered(tied.parameters()):
        assert torch.equal(tied.first.weight, tied.second.weight) and torch.equal(tied.left, tied.right)
        assert not torch.equal(tied.left, torch.full((HIDDEN,), 2.0))


def test_tied_parameters_stay_tied():
    world.run(2, _ties)


class Normed(nn.Module):  # as the constructors of wav2vec2 and Hubert do
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(HIDDEN, HIDDEN, 3, padding=1)
        with zero.GatheredParameters(self.conv.weight, modifier_rank=0):
            self.conv = weight_norm(self.conv, name="weight", dim=2)
        zero.register_external_parameter(self, self.conv.parametrizations.weight.original0)

    def forward(self, x):
        return self.conv(x)


def _weight_norm(stage):
    model = build(build=Normed)
    assert all(param.ds_status is zero.ZeroParamStatus.NOT_AVAILABLE for param in model.parameters())
    assert [param for _, param in model.ds_external_parameters()] == [model.conv.parametrizations.weight.original0]
    engine, *_ = zeroshard.initialize(model=model, config=models.configuration(stage, optimizer=models.adamw()))
    x = torch.arange(4.0 * HIDDEN).view(1, HIDDEN, 4) / 10
    losses = []
    for _ in range(3):
        loss = engine(x).square().mean()
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
    return losses


def test_weight_norm_in_a_constructor():
    reference = world.run(1, _weight_norm, stage=0)[0]
    for stage in (0, 3):
        assert world.run(2, _weight_norm, stage=stage) == [pytest.approx(reference, rel=1e-5)] * 2


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        raise KeyError("no such size")


def _constructors():
    zeroshard.init_distributed(world.device())
    constructor = nn.Linear.__init__
    with pytest.raises(KeyError), zero.Init():
        Failing()
    assert nn.Linear.__init__ is constructor and "__init_subclass__" not in vars(nn.Module)
    with zero.Init():

        class Late(nn.Module):
            def __init__(self):
                super().__init__()
                with zero.Init():  # transformers does so in from_config
                    self.inner = nn.Linear(3, 3)
                self.own = nn.Parameter(torch.ones(3))

        late = Late()
        other = Late()
    assert all(hasattr(param, "ds_id") for model in (late, other) for param in model.parameters())
    assert not hasattr(next(Late().inner.parameters()).data, "ds_id")
    assert nn.Linear.__init__ is constructor


def test_constructors_are_as_before_afterwards():
    world.run(1, _constructors)


# -- GatheredParameters ----------------------------------------------------------------------------------------------


def _all_kinds():
    model = build()
    before = values_of(model)
    plain = nn.Parameter(torch.ones(2))
    weight = model.head.weight
    for params in (
        [],
        [None],
        weight,
        (p for p in [weight, weight]),
        [None, plain, weight, model.offset],
        {weight, plain},
    ):
        with zero.GatheredParameters(params, modifier_rank=0):
            pass
    with zero.GatheredParameters(set(model.parameters())):  # another order on each rank
        assert all(param.ds_status is zero.ZeroParamStatus.AVAILABLE for param in model.parameters())
    with zero.GatheredParameters(weight, enabled=False):
        assert weight.ds_status is zero.ZeroParamStatus.NOT_AVAILABLE
    assert values_of(model) == before
    with zero.GatheredParameters([weight, plain], modifier_rank=1):
        weight.data.fill_(torch.distributed.get_rank())
    with zero.GatheredParameters(weight):
        assert (weight == 1).all()
        weight.data.fill_(9)  # not kept: no rank modifies
    with pytest.raises(KeyError), zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        weight.data = torch.zeros(5, 5)
        raise KeyError("in the middle")
    with zero.GatheredParameters(weight):
        assert weight.shape == (11, HIDDEN) and (weight == 1).all()
    with pytest.raises(ValueError, match="modify_rank is 5"), zero.GatheredParameters(weight, modifier_rank=5):
        pass
    with zero.GatheredParameters(weight, modifier_rank=0):  # another shape
        weight.data = torch.full((2, HIDDEN), 4.0)
    assert weight.shape == (2, HIDDEN)
    assert values_of(model)["head.weight"] == [[4.0] * HIDDEN] * 2


def test_gathers_whatever_it_is_given():
    world.run(2, _all_kinds)


def _nested(owned):
    model = build()
    if owned:
        zeroshard.initialize(model=model, config=models.configuration(optimizer=models.adamw()))
    rank = torch.distributed.get_rank()
    weight, bias = model.blocks[1].inner.weight, model.blocks[1].inner.bias
    with zero.GatheredParameters([weight, bias], modifier_rank=0):
        if rank == 0:
            with zero.GatheredParameters(weight, modifier_rank=0), zero.GatheredParameters([weight, bias]):
                weight.data.fill_(3)
        assert weight.sum().item() == (3 * HIDDEN**2 if rank == 0 else weight.sum().item())
    with zero.GatheredParameters(weight):
        assert (weight == 3).all()
        with pytest.raises(zeroshard.StateError, match="give the outer context that rank"):
            zero.GatheredParameters(weight, modifier_rank=0).__enter__()
    with zero.GatheredParameters(weight):
        assert (weight == 3).all()


@pytest.mark.parametrize("owned", [False, True])
def test_inside_another_context_one_rank_alone_may_gather(owned):
    world.run(3, _nested, owned=owned)


def _alone():
    model = build()
    rank = torch.distributed.get_rank()
    try:
        if rank == 0:
            with zero.GatheredParameters(model.head.weight):
                pass
        with zero.GatheredParameters(model.embedding.weight):
            pass
    except zeroshard.CommError as error:
        return str(error)
    return None


def test_a_gather_of_one_rank_alone_is_an_error_on_every_rank():
    for error in world.run(2, _alone):
        assert "ranks disagree" in error and f"Linear.weight [11, {HIDDEN}]" in error and "Embedding.weight" in error


def _copies():
    model = build()
    before = values_of(model)
    copied = copy.deepcopy(model)
    assert all(param.ds_status is zero.ZeroParamStatus.NOT_AVAILABLE for param in copied.parameters())
    with zero.GatheredParameters(model.head.weight, modifier_rank=0):
        whole = copy.deepcopy(model.head)
        model.head.weight.data.zero_()
    assert whole.weight.tolist() == before["head.weight"] and not hasattr(whole.weight, "ds_id")
    again = copy.deepcopy(copied)
    again.head.weight.ds_tensor.zero_()
    assert values_of(copied) == before, "the copy shares its shards"
    for dtype in (torch.bfloat16, torch.float32):
        copied.to(dtype)
        assert {param.dtype for param in copied.parameters()} == {dtype}
        assert {param.ds_tensor.dtype for param in copied.parameters()} == {dtype}
    rounded = {name: torch.tensor(value).bfloat16().float().tolist() for name, value in before.items()}
    assert values_of(copied) == rounded
    assert values_of(copied.half().double()).keys() == before.keys()
    with pytest.raises(zeroshard.StateError, match="cannot be pickled"):
        pickle.dumps(model.head.weight)
    with pytest.raises(zeroshard.StateError, match="cannot be pickled"), tempfile.TemporaryFile() as file:
        torch.save(model, file)
    assert "sharded" in repr(model.head.weight)


@pytest.mark.parametrize("on", [None, simulated.case("late")])
def test_copies_and_casts_keep_the_shards(on):
    world.run(2, _copies, on=on)


# -- the engine takes over -------------------------------------------------------------------------------------------


def _trains(stage, sharded_before):
    with contextlib.nullcontext() if not sharded_before else zero.Init():
        zeroshard.init_distributed(world.device())
        torch.manual_seed(0)
        model = Model(tied=True)
    engine, *_ = zeroshard.initialize(model=model, config=models.configuration(stage, optimizer=models.adamw()))
    assert type(model.head.weight.data) is torch.Tensor
    ids = (torch.arange(6).view(2, 3) + torch.distributed.get_rank()).to(world.device())
    for _ in range(3):
        engine.backward(engine(ids).square().mean())
        engine.step()
    digest = engine.parameter_digest()
    if stage == 3 and torch.distributed.get_world_size() > 1:
        assert all(param.ds_status is zero.ZeroParamStatus.NOT_AVAILABLE for param in model.parameters())
        with zero.GatheredParameters(model.head.weight):
            assert model.head.weight.ds_status is zero.ZeroParamStatus.AVAILABLE
    engine.destroy()
    assert not any(hasattr(param, "ds_id") for param in model.parameters())
    return digest


@pytest.mark.parametrize(
    "ranks,stages,on",
    [*((ranks, range(4), None) for ranks in (1, 2, 3)), simulated.case(2, [1, 3], "lazy")],
    ids=["1", "2", "3", "2-lazy"],
)
def test_an_engine_takes_the_shards_over(ranks, stages, on):
    digests = {
        digest
        for stage in stages
        for sharded_before in (False, True)
        for digest in world.run(ranks, _trains, stage=stage, sharded_before=sharded_before, on=on)
    }
    assert len(digests) == 1


# -- what constructors and scripts do --------------------------------------------------------------------------------


class Views(nn.Module):
    def __init__(self, view):
        super().__init__()
        self.first = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.second = nn.Parameter(view(self.first.weight))


class Overlapping(nn.Module):
    def __init__(self):
        super().__init__()
        flat = torch.rand(8)
        self.first, self.second = nn.Parameter(flat[:5]), nn.Parameter(flat[3:])


class Applies(nn.Module):
    """As nanoGPT and timm initialize their modules."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(HIDDEN, HIDDEN)
        self.attention = nn.MultiheadAttention(4, 2)
        self.embedding = nn.Embedding(5, HIDDEN, padding_idx=1)
        self.apply(self.init)
        nn.init.constant_(self.inner.bias, 0.25)
        self.attention.out_proj.bias.data.fill_(0.5)

    @staticmethod
    def init(module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=7, std=0.02)
        if isinstance(module, nn.Embedding):
            module.weight.data[1].zero_()


def _constructors_that_initialize():
    model = build(build=Applies)
    with zero.GatheredParameters(model.parameters()):
        assert abs(model.inner.weight.mean() - 7) < 0.1 and (model.inner.bias == 0.25).all()
        assert (model.attention.out_proj.bias == 0.5).all() and (model.embedding.weight[1] == 0).all()
    with pytest.raises(RuntimeError, match="is sharded"):
        model.inner.bias.data.fill_(1)  # on its own, outside of Init
    build(build=lambda: nn.Transformer(8, 2, 1, 1, 16))
    build(build=lambda: nn.LazyLinear(3))
    for view in (lambda weight: weight.t(), lambda weight: weight[:2]):
        with pytest.raises(zeroshard.StateError, match="not the same elements"):
            build(build=lambda view=view: Views(view))
    with pytest.raises(ValueError, match="share memory"):
        build(build=Overlapping)
    return values_of(model)


def test_constructors_that_initialize_other_modules():
    first, second = world.run(2, _constructors_that_initialize)
    assert first == second


def _assignments():
    model = build()
    first, second = model.blocks[0].inner, model.blocks[1].inner
    first.weight.data = torch.full((HIDDEN, HIDDEN), 7.0)
    copied = copy.deepcopy(first).half()
    assert (copied.weight == 7).all()
    with pytest.raises(zeroshard.StateError, match="data of another parameter"):
        second.weight.data = model.blocks[2].inner.weight.data
    second.weight.data = second.weight.data.to(torch.bfloat16)
    assert second.weight.dtype == second.weight.ds_tensor.dtype == torch.bfloat16
    with zero.GatheredParameters([first.weight, second.weight]):
        assert (first.weight == 7).all() and second.weight.dtype == torch.bfloat16
        model.half()  # inside a context that reads
    with zero.GatheredParameters([first.weight, second.weight]):
        assert (first.weight == 7).all() and second.weight.dtype == torch.float16
    assert type(first.weight.data) is not torch.Tensor and "sharded" in repr(first.weight.data)

    tied = build(build=Tied)
    tied.first.weight.data = torch.full((HIDDEN, HIDDEN), 3.0)
    with zero.GatheredParameters(tied.second.weight):
        assert (tied.second.weight == 3).all() and (tied.first.weight == 3).all()
    with zero.GatheredParameters(tied.parameters(), modifier_rank=1):
        tied.first.weight.data = torch.full((HIDDEN, HIDDEN), 4.0 + torch.distributed.get_rank())
    with zero.GatheredParameters(tied.parameters()):
        assert (tied.second.weight == 5).all()

    for _ in range(20):  # memory of earlier shards is used again
        model.blocks[2].half()
        with zero.GatheredParameters(model.parameters()):
            pass
    weight = model.blocks[2].inner.weight
    with zero.Init():
        other = Views(lambda own: weight.data)
    with zero.GatheredParameters([weight, other.second]):
        assert torch.equal(weight, other.second)

    empty = nn.Linear(3, 3)
    empty.none = nn.Parameter(torch.empty(0, 4))
    zero.Init(module=empty, dtype=torch.bfloat16)
    assert empty.none.dtype == torch.bfloat16
    engine, *_ = zeroshard.initialize(model=empty, config=models.configuration())
    assert engine(torch.ones(1, 3).bfloat16()).shape == (1, 3)
    with zero.GatheredParameters(None), zero.GatheredParameters(None, enabled=False):
        pass


def test_data_that_is_assigned_counts():
    world.run(2, _assignments)


def _while_it_is_held():
    model = build()
    with (
        pytest.raises(zeroshard.StateError, match="whose|writes would be"),
        zero.GatheredParameters(model.parameters(), modifier_rank=1),
    ):
        zeroshard.initialize(model=model, config=models.configuration())
    with torch.inference_mode(), zero.GatheredParameters(model.parameters(), modifier_rank=0):
        model.head.weight.data.fill_(2)
    model.head.weight.ds_tensor.mul_(2)
    engine, *_ = zeroshard.initialize(model=model, config=models.configuration(optimizer=models.adamw()))
    engine.backward(engine(torch.ones(1, 2, dtype=torch.int64)).sum())
    engine.step()


def test_an_engine_takes_nothing_that_is_being_written():
    world.run(2, _while_it_is_held)


def _after_a_failure():
    model = build()
    weight = model.head.weight if torch.distributed.get_rank() == 0 else model.embedding.weight
    with pytest.raises(zeroshard.CommError, match="ranks disagree"), zero.GatheredParameters(weight):
        pass
    with pytest.raises(zeroshard.StateError, match="Make the model anew"), zero.GatheredParameters(weight):
        pass
    return values_of(build())


def test_after_a_failure_another_model_can_be_made():
    assert world.run(2, _after_a_failure) == [expected()] * 2


def _leaves():
    model = nn.Sequential(Model(), nn.Linear(11, 11))
    blocks = model[0].blocks
    assert leaf_modules.set_z3_leaf_modules(model, [Block]) == list(blocks)
    assert leaf_modules.set_z3_leaf_modules(model, ["Model"]) == [model[0]]
    assert [unit.name for unit in zeroshard.find_units(model)] == ["0", "1"]
    assert leaf_modules.get_z3_leaf_modules(model) == [model[0], *blocks]
    assert leaf_modules.unset_z3_leaf_modules(model, ["Model"]) == [model[0]]
    assert "0.blocks.1" in {unit.name for unit in zeroshard.find_units(model)}
    for function in (leaf_modules.set_z3_leaf_modules, leaf_modules.unset_z3_leaf_modules):
        with pytest.raises(ValueError, match="Conv2d"):
            function(model, [nn.Conv2d])
        assert function(model, ["Conv2d"], raise_if_not_found=False) == []


def test_leaf_modules_are_units():
    world.run(1, _leaves)


def _configured_leaves(leaf_module):
    config = models.configuration(3, optimizer=models.adamw())
    config["zero_optimization"]["leaf_module"] = leaf_module
    messages, model = [], Model()
    with mock.patch.object(making, "log", messages.append):
        if leaf_module == {"names": [""]}:  # after an engine with other ones, and after an error
            others = models.configuration(3, optimizer=models.adamw())
            others["zero_optimization"]["leaf_module"] = {"names": ["blocks.0.inner"]}
            zeroshard.initialize(model=model, config=others)[0].destroy()
        engine, *_ = zeroshard.initialize(model=model, config=config)
    engine.backward(engine(torch.ones(1, 2, dtype=torch.int64)).sum())
    engine.step()
    return sorted(unit.name for unit in engine._run.units), engine.parameter_digest(), messages


BLOCK = f"{Block.__module__}.{Block.__qualname__}"
USUAL = ["blocks.0", "blocks.1", "blocks.2", "embedding", "head"]
LEAVES = [
    (None, USUAL),
    ({"classes": [BLOCK, "Nowhere"]}, USUAL),
    ({"classes": ["Linear"], "names": ["head"]}, sorted([*USUAL, *(f"blocks.{index}.inner" for index in range(3))])),
    ({"names": ["blocks.1.inner"], "classes": []}, sorted([*USUAL, "blocks.1.inner"])),
    ({"name_suffixes": ["2.inner"]}, sorted([*USUAL, "blocks.2.inner"])),
    ({"classes": ["ModuleList"]}, ["blocks", "embedding", "head"]),
    ({"names": [""]}, ["root"]),
]
WRONG = [("blocks", "leaf_module"), ({"classes": "Linear"}, "classes"), ({"kinds": ["Linear"]}, "kinds")]


def test_the_configuration_names_leaf_modules():
    digests, told = set(), []
    for leaf_module, expected in LEAVES:
        for units, digest, messages in world.run(2, _configured_leaves, leaf_module=leaf_module):
            assert units == expected
            digests.add(digest)
            told += messages
    assert len(digests) == 1
    assert told == ["zero_optimization.leaf_module: Model has no module Nowhere"]
    for wrong, named in WRONG:
        with pytest.raises(AssertionError, match=f"ConfigError.*{named}"):
            world.run(1, _configured_leaves, leaf_module=wrong)
