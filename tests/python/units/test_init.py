"""Models built inside ``zeroshard.Init()`` or on the meta device: the values of eager building, or an error."""

import contextlib
import sys
import tempfile

import models
import pytest
import torch
import world
import zeroshard
from torch import nn

WIDTH = 10
NO_VALUE = "gets no value"
LOST = "the values are lost"


def context_of(name):
    return zeroshard.Init() if name == "Init" else torch.device("meta")


def values_of(model):
    """The parameters after `initialize`: sizes, and the value where all elements have the same."""
    zeroshard.initialize(model=model, config=models.configuration())
    with zeroshard.gathered(model.parameters()):
        assert all(torch.isfinite(param).all() for param in model.parameters())
        return {name: param.unique().tolist() for name, param in model.named_parameters()}


def error_of(model):
    try:
        zeroshard.initialize(model=model, config=models.configuration())
    except ValueError as error:
        return str(error)
    return None


def run(case, **arguments):
    return world.run(1, case, **arguments)[0]


# -- initialisers ------------------------------------------------------------------------------------------------------


class Partial(models.Stack):
    """Initialises linear layers alone, some of them from modules around them, one from outside of its unit."""

    def __init__(self):
        super().__init__(WIDTH)
        self.apply(self._init_weights)

    @torch.no_grad()
    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.fill_(0.5)
            module.bias.mul_(0.0).add_(2.0)  # needs what reset_parameters() left
        elif isinstance(module, models.Residual):
            module.up.weight.fill_(0.25)
        elif module is self:
            self.blocks[1].down.weight.fill_(0.125)


def partly_initialised(context):
    junk = [torch.full((WIDTH,), 7.0) for _ in range(1000)]  # for the heap to hand out
    del junk
    with context_of(context):
        model = Partial()
    return values_of(model) == {name: param.unique().tolist() for name, param in Partial().named_parameters()}


@pytest.mark.parametrize("context", ["Init", "device"])
def test_values_are_those_of_building_eagerly(context):
    assert run(partly_initialised, context=context)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(WIDTH))


class Unwritten(Partial):
    def __init__(self):
        super().__init__()
        self.blocks[2].norm = Scale()


class HalfWritten(Scale):
    def reset_parameters(self):
        nn.init.ones_(self.scale[1:])


def unwritten(context, model):
    with context_of(context):
        built = {"Unwritten": Unwritten, "Scale": Scale, "HalfWritten": HalfWritten}[model]()
    return error_of(built)


@pytest.mark.parametrize("context", ["Init", "device"])
@pytest.mark.parametrize(
    ("model", "name"), [("Unwritten", "blocks.2.norm.scale"), ("Scale", "scale"), ("HalfWritten", "scale")]
)
def test_a_parameter_that_nothing_writes_is_named(context, model, name):
    error = run(unwritten, context=context, model=model)
    assert error and f"'{name}'" in error and NO_VALUE in error


class Enclosing(nn.Module):
    """Parameters of its own, whose values are given where they are made, beside modules that initialise theirs."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, 7, WIDTH))
        nn.init.trunc_normal_(self.position, std=0.02)
        self.queries = nn.Parameter(torch.randn(3, WIDTH) * WIDTH**-0.5)
        self.logit_scale = nn.Parameter(torch.tensor(2.65))
        self.layer_scale = nn.Parameter(torch.ones(WIDTH) * 1e-6)
        self.frozen = nn.Parameter(torch.linspace(0, 1, WIDTH), requires_grad=False)
        made = torch.empty(WIDTH)
        self.made = nn.Parameter(nn.init.constant_(made, 4.0))
        self.table = nn.Embedding.from_pretrained(torch.arange(6.0).reshape(3, 2), freeze=False)
        self.reset = Reset()
        self.body = Partial()

    def forward(self, x):
        return self.body(x * self.layer_scale) * self.logit_scale + self.queries.sum() + self.position.mean()


class Reset(nn.Module):
    """Has a method that would write other values, and does not call it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((WIDTH,), 0.75))

    def reset_parameters(self):
        nn.init.zeros_(self.weight)


def enclosing(context, kept_bytes):
    if kept_bytes is not None:
        sys.modules["zeroshard.materialize"]._KEPT_BYTES = kept_bytes
    torch.manual_seed(3)
    with zeroshard.Init() if context == "Init" else contextlib.nullcontext():
        model = Enclosing()
    on_meta = sorted({name.split(".")[0] for name, param in model.named_parameters() if param.is_meta})
    return on_meta, values_of(model)


def test_parameters_made_of_values_keep_them():
    built = run(enclosing, context="Init", kept_bytes=None)
    assert built == [["body"], run(enclosing, context="eager", kept_bytes=None)[1]]


class Constants(nn.Module):
    """More than is kept."""

    def __init__(self, fills):
        super().__init__()
        self.large = nn.Parameter(torch.full((5000, 4000), 0.125))
        self.reset = Reset()
        if fills:
            self.reset.reset_parameters()
        self.other = nn.Parameter(torch.full((2, 5), -3.0))


def large(fills):
    with zeroshard.Init():
        model = Constants(fills)
    return model.large.is_meta, model.large.shape, values_of(model)


@pytest.mark.parametrize("fills", [False, True])
def test_a_large_parameter_of_one_value_takes_no_memory(fills):
    values = {"large": [0.125], "reset.weight": [0.0 if fills else 0.75], "other": [-3.0]}
    assert run(large, fills=fills) == [True, [5000, 4000], values]


def large_and_different(initialized):
    sys.modules["zeroshard.materialize"]._KEPT_BYTES = 20 * 4
    with zeroshard.Init():
        model = nn.Module()
        model.kept = nn.Parameter(torch.arange(20.0))
        model.table = nn.Embedding.from_pretrained(torch.arange(6.0).reshape(3, 2), freeze=False)
        if initialized:
            model.table.reset_parameters()
    return error_of(model)


def test_a_large_parameter_of_many_values_is_named():
    assert "'table.weight' of a Embedding in unit 'table' was made of values" in run(
        large_and_different, initialized=False
    )
    assert run(large_and_different, initialized=True) is None


def computed_from_parameters(how):
    with zeroshard.Init():
        model = nn.Sequential(getattr(nn.utils.parametrizations, how)(nn.Linear(3, 3)))
    return error_of(model)


@pytest.mark.parametrize(
    ("how", "name"),
    [("weight_norm", "weight.original0' of a ParametrizationList"), ("spectral_norm", "weight.0._u' is")],
)
def test_what_is_computed_from_parameters_without_memory_is_named(how, name):
    error = run(computed_from_parameters, how=how)
    assert f"'0.parametrizations.{name}" in error and "outside of" in error


def train_enclosing_model(context, stage):
    torch.manual_seed(3)
    with zeroshard.Init() if context == "Init" else contextlib.nullcontext():
        model = Enclosing()
    settings = models.configuration(stage, optimizer=models.adamw())
    engine = zeroshard.initialize(model=model, config=settings)[0]
    for step in range(2):
        x, y = models.vectors(step, world.rank(), 2)
        engine.backward(nn.functional.mse_loss(engine(x), y))
        engine.step()
    return engine.parameter_digest()


def test_training_has_the_same_bits_as_without_the_context():
    digests = [
        world.run(2, train_enclosing_model, context=context, stage=stage)
        for context in ("Init", "eager")
        for stage in (0, 3)
    ]
    assert len({digest for by_rank in digests for digest in by_rank}) == 1, digests


def attention():
    with zeroshard.Init():
        model = nn.Transformer(8, 2, 1, 1, 16)
    values = values_of(model)
    return values["encoder.layers.0.self_attn.out_proj.bias"], values["decoder.layers.0.norm1.weight"]


def test_initialisers_of_torch_attention():
    assert run(attention) == [[0], [1]]


def running_mean():
    with zeroshard.Init():
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        model[1].running_mean.fill_(5)
    values_of(model)
    return model[1].running_mean.tolist()


def test_buffers_keep_their_values():
    assert run(running_mean) == [5, 5, 5]


# -- values that are given ---------------------------------------------------------------------------------------------


def give(how):
    source = models.tiny_llama(seed=5) if how == "from_pretrained" else models.stack(seed=5)
    with tempfile.TemporaryDirectory() as directory, zeroshard.Init():
        if how == "from_pretrained":
            source.save_pretrained(directory)
            model = type(source).from_pretrained(directory)
        else:
            model = models.Stack(WIDTH)
        if how == "load_state_dict":
            model.load_state_dict(source.state_dict(), assign=True)
        if how == "assign":
            head, expected = nn.Parameter(torch.full((5, WIDTH), 3.0)), nn.Parameter(torch.full((5,), 2.0))
            model.head.weight = source.head.weight = head
            del model.head.bias
            model.head.bias = source.head.bias = expected
    expected = {name: param.detach().clone() for name, param in source.named_parameters()}
    zeroshard.initialize(model=model, config=models.configuration())
    with zeroshard.gathered(model.parameters()):
        same = {name: torch.equal(param, expected[name]) for name, param in model.named_parameters()}
    return all(value for name, value in same.items() if how != "assign" or name.startswith("head"))


@pytest.mark.parametrize("how", ["from_pretrained", "load_state_dict", "assign"])
def test_values_given_inside_are_kept(how):
    assert run(give, how=how)


def write(how):
    values = models.stack(seed=5).state_dict()
    with zeroshard.Init():
        model = models.Stack(WIDTH)
        if how == "load inside":
            model.load_state_dict(values)
        if how == "data":
            model.head.weight.data[0].fill_(1.0)
        if how == "cast":
            nn.init.zeros_(model.head.weight)
            model.bfloat16()
        if how == "reset again":
            nn.init.zeros_(model.head.weight)
            model.head.reset_parameters()
    if how == "load after":
        model.load_state_dict(values)
    return error_of(model)


@pytest.mark.parametrize("how", ["load inside", "load after", "data", "cast"])
def test_values_that_are_lost_are_an_error(how):
    error = run(write, how=how)
    assert error and LOST in error and "assign=True" in error
    assert "'blocks.0." in error if "load" in how else "'head.weight'" in error


def test_values_that_are_overwritten_are_not_missed():
    assert run(write, how="reset again") is None


# -- ties --------------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """`first` and `second` share a weight of `how` it came to be; an embedding starts wider than a linear layer."""

    def __init__(self, how):
        super().__init__()
        shared = nn.Parameter(torch.full((40, 40), 3.0))
        if how == "new modules":
            self.first, self.second = Weighted(shared), Weighted(shared)
            return
        self.first, self.second = nn.Embedding(40, 40), nn.Linear(40, 40, bias=False)
        if how == "variable":
            self.first.weight = shared
            self.second.weight = shared
        elif how == "embedding":
            self.second.weight = self.first.weight
        else:
            self.first.weight = self.second.weight


class Weighted(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def reset_parameters(self):
        nn.init.constant_(self.weight, 3.0)


def tie(how):
    with zeroshard.Init():
        model = Tied(how)
    zeroshard.initialize(model=model, config=models.configuration())
    with zeroshard.gathered(model.parameters()):
        return model.first.weight is model.second.weight, model.first.weight.float().square().mean().sqrt().item()


@pytest.mark.parametrize(
    ("how", "size"), [("variable", 3), ("new modules", 3), ("embedding", 1), ("linear", (1 / 120) ** 0.5)]
)
def test_ties_stay_with_the_values_of_the_module_they_come_from(how, size):
    tied, root_mean_square = run(tie, how=how)
    assert tied
    assert root_mean_square == pytest.approx(size, rel=0.15)  # 1600 random elements


# -- dtype -------------------------------------------------------------------------------------------------------------


def cast():
    with zeroshard.Init(dtype=torch.bfloat16):
        model = models.Stack(WIDTH)
        model.head.bias = nn.Parameter(torch.full((5,), 2.0))
        model.norm = nn.BatchNorm1d(5)
        model.count = nn.Parameter(torch.arange(3), requires_grad=False)
    built = {str(param.dtype) for param in model.parameters()}
    del model.count
    zeroshard.initialize(model=model, config=models.configuration())
    return built, {str(param.dtype) for param in model.parameters()}, str(model.norm.running_mean.dtype)


def cast_and_list():
    return [sorted(one) if isinstance(one, set) else one for one in cast()]


def test_dtype():
    assert run(cast_and_list) == [["torch.bfloat16", "torch.int64"], ["torch.bfloat16"], "torch.float32"]


@pytest.mark.parametrize("dtype", [torch.int32, "bf16"])
def test_a_dtype_that_is_none_of_parameters(dtype):
    with pytest.raises(ValueError, match="floating-point"):
        zeroshard.Init(dtype=dtype)


def test_contexts_end():
    register = nn.Module.register_parameter
    with (
        contextlib.suppress(KeyError),
        zeroshard.Init(),
        zeroshard.Init(dtype=torch.bfloat16),
        zeroshard.Init(enabled=False),
    ):
        assert nn.Linear(2, 2).weight.is_meta and nn.Linear(2, 2).weight.dtype == torch.bfloat16
        raise KeyError
    assert nn.Module.register_parameter is register
    assert not nn.Linear(2, 2).weight.is_meta
