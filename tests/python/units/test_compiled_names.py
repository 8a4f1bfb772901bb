"""torch.compile before initialize: names are those of the plain model wherever they are written, read or shown."""

import contextlib
import json
import os

import models
import pytest
import torch
import world
import zeroshard
from torch import nn
from zeroshard.compat import zero_to_fp32


class Network(nn.Module):
    """Blocks, a tied and a frozen parameter, and buffers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(10, 10, bias=False)
        self.blocks = nn.ModuleList([models.Residual(10) for _ in range(2)])
        self.norm = nn.BatchNorm1d(10)
        self.tied = nn.Linear(10, 10, bias=False)
        self.tied.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.ones(10), requires_grad=False)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.tied(self.norm(x)) * self.frozen


PLAIN = set(Network().state_dict())


def compiled(model, way, backend="eager"):
    if way in ("blocks", "both"):
        for index, block in enumerate(model.blocks):
            model.blocks[index] = torch.compile(block, backend=backend)
    return torch.compile(model, backend=backend) if way in ("whole", "both") else model


def make_compiled_engine(stage, way=None, outside=False):
    torch._dynamo.reset()
    model = compiled(Network(), way)
    own = {} if outside else {"optimizer": models.adamw()}
    config = models.configuration(stage, **own)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3) if outside else None
    return zeroshard.initialize(model=model, config=config, optimizer=optimizer)[0]


def train_network(engine, first, steps=2):
    losses = []
    for step in range(first, first + steps):
        x = models.share(models.vectors(step, 0, 4 * world.size())[0], world.rank(), world.size())
        loss = engine(x).pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def facts(engine):
    return [engine.parameter_digest(), engine.global_steps, [b.tolist() for b in engine.module.buffers()]]


def names_in(folder):
    """All names in the manifest and in the data files of a checkpoint."""
    from safetensors import safe_open

    with open(os.path.join(folder, "manifest.json")) as file:
        tensors = json.load(file)["tensors"]
    names = {name for tensor in tensors for name in (tensor["name"], *tensor["aliases"])}
    for path in (os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors")):
        with safe_open(path, "pt") as file:
            names |= {key.partition("/")[2].rpartition("[")[0] for key in file.keys()}  # noqa: SIM118
    return names


def save_and_load(folder, stage, saves, loads, outside):
    engine = make_compiled_engine(stage, saves, outside)
    train_network(engine, 0)
    engine.save_checkpoint(folder, client_state={"weights": {"_orig_mod.x": torch.ones(2)}})
    engine.save_16bit_model(folder + "-16bit")
    engine.wait_for_checkpoint()
    losses = train_network(engine, 2)
    expected = facts(engine)
    engine = make_compiled_engine(stage, loads, outside)
    _, client = engine.load_checkpoint(folder)
    assert client["weights"]["_orig_mod.x"].tolist() == [1, 1]
    assert train_network(engine, 2) == losses
    assert facts(engine) == expected
    return expected[0]


@pytest.mark.parametrize(
    ("ranks", "stage", "way", "outside"),
    [(1, 0, "whole", False), (2, 2, "blocks", True), (2, 3, "blocks", False), (2, 3, "both", False)],
)
def test_checkpoints_of_compiled_and_plain_models_are_the_same(tmp_path, ranks, stage, outside, way):
    from safetensors.torch import load_file

    digests = set()
    for saves, loads in ((way, None), (None, way)):
        folder = tmp_path / f"{saves}-{loads}"
        case = {"stage": stage, "saves": saves, "loads": loads, "outside": outside}
        digests |= set(world.run(ranks, save_and_load, folder=str(folder), **case))
        assert names_in(folder / "global_step2") - {"client.client.weights._orig_mod.x"} == PLAIN
        assert set(load_file(f"{folder}-16bit/model.safetensors")) == PLAIN - {"tied.weight"}
        assert set(zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder)) == PLAIN
    assert len(digests) == 1


@contextlib.contextmanager
def names_as_before():
    """As an earlier version wrote them."""
    places = [zeroshard.units, zeroshard.checkpoint]
    own = zeroshard.units.plain_names
    for place in places:
        place.plain_names = lambda named: {name: name for name, _ in named}
    try:
        yield
    finally:
        for place in places:
            place.plain_names = own


def load_an_old_one(folder, stage, saves, loads, outside):
    with names_as_before():
        engine = make_compiled_engine(stage, saves, outside)
        train_network(engine, 0)
        engine.save_checkpoint(folder)
        engine.wait_for_checkpoint()
        losses = train_network(engine, 2)
        expected = facts(engine)[1:]
    engine = make_compiled_engine(stage, loads, outside)
    engine.load_checkpoint(folder)
    assert train_network(engine, 2) == losses
    assert facts(engine)[1:] == expected


@pytest.mark.parametrize(
    ("ranks", "stage", "saves", "loads", "outside"),
    [(1, 0, "whole", None, True), (2, 3, "both", "blocks", False), (2, 2, "blocks", "whole", True)],
)
def test_checkpoints_of_earlier_versions_are_loaded(tmp_path, ranks, stage, saves, loads, outside):
    case = {"stage": stage, "saves": saves, "loads": loads, "outside": outside}
    world.run(ranks, load_an_old_one, folder=str(tmp_path), **case)
    assert names_in(tmp_path / "global_step2") == set(compiled(Network(), saves).state_dict())
    state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert set(state) == PLAIN
    zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(tmp_path, tmp_path / "out")
    from safetensors.torch import load_file

    assert set(load_file(tmp_path / "out" / "model.safetensors")) == PLAIN - {"tied.weight"}
    model = zero_to_fp32.load_state_dict_from_zero_checkpoint(compiled(Network(), "both"), tmp_path)
    own = dict(model.named_parameters())
    assert torch.equal(own["_orig_mod.blocks.1._orig_mod.up.weight"], state["blocks.1.up.weight"])


def messages():
    engine = make_compiled_engine(3, "both")
    shown = [
        repr(next(engine.module.blocks[0].parameters())),
        *(unit.name for unit in zeroshard.find_units(engine.module)),
    ]
    again = compiled(Network(), "both")
    params = list(again.parameters())
    with pytest.raises(ValueError, match="in two param groups") as caught:
        zeroshard.initialize(
            model=again,
            model_parameters=[{"params": params}, {"params": params[-1:]}],
            config=models.configuration(2, optimizer=models.adamw()),
        )
    return [*shown, str(caught.value)]


def test_messages_have_the_names_of_the_plain_model():
    param, *units, groups = world.run(2, messages)[0]
    assert "'blocks.0.norm.weight'" in param
    assert units == ["root", "embed", "blocks.0", "blocks.1", "norm"]
    assert "'norm.bias'" in groups


def leaves():
    leaf = {"leaf_module": {"names": ["inner"]}}
    model = nn.Module()
    model.inner = torch.compile(Network())
    config = models.configuration(3, optimizer=models.adamw(), zero_optimization=leaf)
    return [unit.name for unit in zeroshard.initialize(model=model, config=config)[0]._run.units]


def test_a_compiled_module_can_be_named_as_a_leaf():
    assert world.run(1, leaves) == [["inner"]]


class Beside(nn.Module):
    """A compiled module and its original; and one that has got parameters of its own under names of the original."""

    def __init__(self, same):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(10, 10)
        self.fast = torch.compile(self.layer, backend="eager")
        self.odd = torch.compile(nn.Linear(10, 10), backend="eager")
        inner = self.odd._orig_mod
        inner.register_buffer("mean", torch.ones(10))
        self.odd._parameters["weight"] = inner.weight if same else nn.Parameter(torch.ones(10, 10))
        self.odd._buffers["mean"] = inner.mean if same else torch.zeros(10)

    def forward(self, x):
        own = self.odd._parameters["weight"].sum() + self.odd._buffers["mean"].sum()
        return self.fast(x) + self.layer(x) + self.odd._orig_mod(x) + own


def save_beside(folder, same):
    def make_one():
        config = models.configuration(0, optimizer=models.adamw())
        return zeroshard.initialize(model=Beside(same), config=config)[0]

    engine = make_one()
    train_network(engine, 0)
    engine.save_checkpoint(folder)
    engine.save_16bit_model(folder)
    engine.wait_for_checkpoint()
    losses = train_network(engine, 2)
    engine = make_one()
    engine.load_checkpoint(folder)
    assert train_network(engine, 2) == losses


@pytest.mark.parametrize("same", [True, False])
def test_two_parameters_never_share_a_name(tmp_path, same):
    world.run(2, save_beside, folder=str(tmp_path), same=same)
    found = {"layer.weight", "layer.bias", "odd.weight", "odd.bias", "odd.mean"}
    assert names_in(tmp_path / "global_step2") == found | (
        set() if same else {"odd._orig_mod.weight", "odd._orig_mod.mean"}
    )


def weights_in(folder, name):
    from safetensors.torch import load_file

    return load_file(os.path.join(folder, name))


def llama(way, adapters):
    model = models.tiny_llama()
    if adapters:
        import peft

        lora = peft.LoraConfig(r=3, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
        torch.manual_seed(0)
        model = peft.get_peft_model(model, lora)
    layers = (model.base_model.model if adapters else model).model.layers
    if way in ("layers", "both"):
        for index, layer in enumerate(layers):
            layers[index] = torch.compile(layer, backend="eager")
    return torch.compile(model, backend="eager") if way in ("whole", "both") else model


def save_llama(folder, stage, way, adapters):
    engine, *_ = zeroshard.initialize(
        model=llama(way, adapters), config=models.configuration(stage, optimizer=models.adamw(3e-3))
    )
    before = list(dict(engine.module.named_modules()))  # it is compiled afterwards, too
    engine.save_pretrained(folder, **({"save_embedding_layers": False} if adapters else {}))
    assert list(dict(engine.module.named_modules())) == before
    if not adapters:
        engine.save_16bit_model(folder + "-16bit")


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("way", ["whole", "layers", "both"])
def test_save_pretrained_writes_the_plain_model(tmp_path, way, adapters):
    if adapters:
        pytest.importorskip("peft")
    file = "adapter_model.safetensors" if adapters else "model.safetensors"
    for each in (None, way):
        world.run(2, save_llama, folder=str(tmp_path / str(each)), stage=3, way=each, adapters=adapters)
    plain, found = (weights_in(tmp_path / str(each), file) for each in (None, way))
    assert plain.keys() == found.keys()
    for name, value in plain.items():
        assert torch.equal(found[name], value)
    if not adapters:
        for folder in (tmp_path / way, f"{tmp_path / way}-16bit"):
            with open(os.path.join(folder, "config.json")) as config:
                assert json.load(config)["architectures"] == ["LlamaForCausalLM"]


def test_imports_have_the_names_of_the_plain_model(tmp_path):
    import torch.distributed.checkpoint as dcp
    from zeroshard.convert import convert

    dcp.save({"model": compiled(Network(), "both").state_dict()}, checkpoint_id=str(tmp_path / "source"), no_dist=True)
    path, _ = convert(tmp_path / "source", tmp_path / "out")
    assert names_in(path) == PLAIN
