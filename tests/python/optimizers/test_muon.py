"""Muon: each matrix is orthogonalised whole, on one rank, whatever ranks and stages cut."""

import models
import pytest
import torch
import world
import zeroshard
from torch import nn
from zeroshard.compat import zero
from zeroshard.compat.ops import MuonWithAuxAdam

SETTINGS = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}


class Net(nn.Module):
    """Matrices of several shapes that ranks cut, a batch of matrices, an embedding, and vectors."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(31, 40)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(40), nn.Linear(40, 70 + i), nn.Tanh(), nn.Linear(70 + i, 40)) for i in range(3)
        )
        self.experts = nn.Parameter(torch.randn(3, 40, 30) / 6)
        self.lm_head = nn.Linear(40, 31)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        mixed = torch.einsum("bsh,ehf->bsf", hidden, self.experts)
        return self.lm_head(hidden + nn.functional.pad(mixed, (0, 10))).float().pow(2).mean()


def matrices(model):
    return [param for name, param in model.named_parameters() if name.startswith("blocks") and param.dim() == 2]


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, 31, (2, 5), generator=generator)


def configured(stage, dtype="fp32", **params):
    return models.configuration(stage, dtype) | {"optimizer": {"type": "Muon", "params": SETTINGS | params}}


def start(stage, config=None, init=False):
    config = config or configured(stage)
    if init:
        with zero.Init(config_dict_or_path=config):
            model = Net()
    else:
        model = Net()
    engine, *_ = zeroshard.initialize(model=model, config=config, model_parameters=model.parameters())
    return engine


def go_on(engine, steps):
    for _ in range(steps):
        engine.backward(engine(batch(engine.global_steps, engine.rank())))
        engine.step()


def weights(engine):
    with zeroshard.gathered(engine.module.parameters()):
        return {name: param.detach().float().flatten().tolist() for name, param in engine.module.named_parameters()}


def train_muon(stage, steps=4, dtype="fp32", init=False, **params):
    engine = start(stage, configured(stage, dtype, **params), init)
    go_on(engine, steps)
    return weights(engine)


def train_object(stage, settings, steps=4):
    """Beside torch's own, on the matrices alone."""
    model, reference = Net(), Net()
    engine, *_ = zeroshard.initialize(
        model=model, config=models.configuration(stage), optimizer=torch.optim.Muon(matrices(model), **settings)
    )
    theirs = torch.optim.Muon(matrices(reference), **settings)
    for step in range(steps):
        tokens = batch(step, 0)
        engine.backward(engine(tokens))
        engine.step()
        reference(tokens).backward()
        theirs.step()
        reference.zero_grad()
    own = weights(engine)
    return [name for name, param in reference.named_parameters() if own[name] != param.detach().flatten().tolist()]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon before 2.9")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lr": 0.05, "weight_decay": 0.0, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"},
        {"momentum": 0.3, "ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5), "eps": 1e-4},
    ],
)
def test_torchs_bits_at_one_rank(stage, settings):
    assert world.run(1, train_object, stage=stage, settings=settings)[0] == []


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("method", ["gram", "standard"])
def test_one_result_over_stages(ranks, method):
    results = [world.run(ranks, train_muon, stage=stage, ns_method=method) for stage in range(4)]
    results.append(world.run(ranks, train_muon, stage=3, ns_method=method, init=True))
    first = results[0][0]
    for stage, of_stage in enumerate(results):
        for rank, own in enumerate(of_stage):
            assert [name for name in first if own[name] != first[name]] == [], (stage, rank)


@pytest.mark.parametrize("stage", [1, 3])
def test_bf16_has_master_weights(stage):
    one, other = (world.run(2, train_muon, stage=each, dtype="bf16")[0] for each in (0, stage))
    assert one == other


def test_methods_agree_and_train():
    gram, standard, still = (
        torch.tensor(sum(world.run(1, train_muon, stage=0, ns_method=method, steps=steps)[0].values(), []))
        for method, steps in (("gram", 4), ("standard", 4), ("gram", 0))
    )
    assert (gram - standard).norm() < 0.1 * (gram - still).norm()  # the one in fp32, the other in bf16


def train_mixed(stage):
    """An object with both kinds of groups is as the configuration's Muon with the same settings."""
    model = Net()
    hidden = set(matrices(model)) | {model.experts}
    groups = [
        {"params": [p for p in model.parameters() if (p in hidden) == use_muon], "use_muon": use_muon, **settings}
        for use_muon, settings in ((True, SETTINGS), (False, {"lr": SETTINGS["lr"], "weight_decay": 0.1}))
    ]
    engine, *_ = zeroshard.initialize(
        model=model, config=models.configuration(stage), optimizer=MuonWithAuxAdam(groups)
    )
    go_on(engine, 4)
    return weights(engine)


def test_an_object_mixes_muon_with_adamw():
    assert world.run(2, train_mixed, stage=3) == world.run(2, train_muon, stage=1)


def save_and_go_on(folder, stage):
    engine = start(stage)
    go_on(engine, 2)
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    return weights(engine)


def load_and_go_on(folder, stage, steps):
    engine = start(stage)
    engine.load_checkpoint(folder)
    go_on(engine, steps)
    states = {
        name: zeroshard.get_optimizer_state(param, "momentum_buffer").abs().sum().item()
        for name, param in engine.module.named_parameters()
        if param in set(matrices(engine.module))
    }
    return weights(engine), states, engine.global_steps


def load_as(folder, kind):
    engine = start(1, models.configuration(1) | {"optimizer": {"type": kind, "params": {"lr": 1e-3}}})
    engine.load_checkpoint(folder)


def test_checkpoints_are_loaded_at_other_ranks(tmp_path):
    saved = world.run(3, save_and_go_on, folder=str(tmp_path), stage=2)[0]
    momenta = []
    for ranks, stage in ((1, 0), (2, 3), (4, 1)):
        own, states, steps = world.run(ranks, load_and_go_on, folder=str(tmp_path), stage=stage, steps=0)[0]
        assert own == saved and steps == 2
        momenta.append(states)
    assert all(each > 0 for each in momenta[0].values())
    assert all(each == pytest.approx(momenta[0]) for each in momenta)  # sums in another order
    one, other = (world.run(2, load_and_go_on, folder=str(tmp_path), stage=s, steps=2)[0] for s in (0, 3))
    assert one[0] == other[0] != saved
    for rank in world.run_ranks(2, load_as, folder=str(tmp_path), kind="AdamW"):
        assert "the optimizer has 1 param groups, the checkpoint 2: load with load_optimizer_states=False" in rank.error


def groups():
    engine = start(2, configured(2, muon_lr=0.5, adam_lr=0.25, betas=[0.8, 0.9]))
    names = {id(param): name for name, param in engine.module.named_parameters()}
    return [
        {key: [names[id(p)] for p in value] if key == "params" else value for key, value in group.items()}
        for group in engine.optimizer.param_groups
    ]


def test_matrices_and_others_are_deepspeeds():
    muon, adam = world.run(1, groups)[0]
    assert muon.pop("params") == ["experts", *(f"blocks.{i}.{j}.weight" for i in range(3) for j in (1, 3))]
    assert {"embed.weight", "lm_head.weight", "lm_head.bias", "blocks.0.0.weight"} <= set(adam.pop("params"))
    same = {"weight_decay": 0.1}
    assert muon == same | {
        "lr": 0.5, "momentum": 0.9, "nesterov": True, "ns_method": "gram", "use_muon": True, "name": "muon-params"
    }  # fmt: skip
    assert adam == same | {"lr": 0.25, "betas": [0.8, 0.9], "eps": 1e-10, "use_muon": False, "name": "adam-params"}


def fail(config, vectors=False):
    model = nn.Sequential(nn.LayerNorm(2000)) if vectors else Net()
    zeroshard.initialize(model=model, config=config, model_parameters=model.parameters())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (configured(2, ns_method="grams"), "optimizer.params.ns_method"),
        (configured(2, per_head_muon=True), "per_head_muon"),
        (configured(2, momentum=1.5), "optimizer.params.momentum"),
        (
            models.configuration(2, zero_optimization={"offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}})
            | {"optimizer": {"type": "Muon", "params": SETTINGS}},
            "Muon updates whole matrices on the device",
        ),
        (configured(2) | {"zeroshard": {"offload": {"moment_dtype": "bf16"}}}, "Muon keeps its momenta in fp32"),
    ],
)
def test_bad_settings_are_refused_at_initialize(config, said):
    for rank in world.run_ranks(2, fail, config=config):
        assert said in rank.error, rank.error


@pytest.mark.idle_ranks("the model has a few vectors alone")
def test_a_model_without_matrices_is_refused():
    for rank in world.run_ranks(2, fail, config=configured(1), vectors=True):
        assert "Muon has no matrix to orthogonalise" in rank.error and "AdamW" in rank.error


def train_in_autocast(enabled):
    engine = start(2, configured(2, ns_method="gram"))
    for _ in range(3):
        engine.backward(engine(batch(engine.global_steps, engine.rank())))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            engine.step()
    return weights(engine)


def test_autocast_around_a_step_changes_nothing():
    assert world.run(2, train_in_autocast, enabled=True) == world.run(2, train_in_autocast, enabled=False)


def mixed(order, **settings):
    model = Net()
    hidden = set(matrices(model)) | {model.experts}
    groups = [
        {"params": [p for p in model.parameters() if (p in hidden) == use_muon], "use_muon": use_muon, **settings}
        for use_muon in order
    ]
    config = models.configuration(2)
    return zeroshard.initialize(model=model, config=config, optimizer=MuonWithAuxAdam(groups))[0]


def save_and_load_in_another_order(folder):
    engine = mixed((True, False))
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    mixed((False, True)).load_checkpoint(folder)


def test_groups_in_another_order_are_told_before_anything_is_loaded(tmp_path):
    for rank in world.run_ranks(2, save_and_load_in_another_order, folder=str(tmp_path)):
        assert "param group 0 has use_muon False, in the checkpoint True: give the optimizer its groups" in rank.error


def train_without_steps_of_the_iteration():
    engine = mixed((True, False), ns_steps=0)
    go_on(engine, 2)
    return weights(engine)


def test_an_iteration_of_no_steps_scales_the_momentum():
    (moved,) = world.run(1, train_without_steps_of_the_iteration)
    assert all(value == value for values in moved.values() for value in values)
