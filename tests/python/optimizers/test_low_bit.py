"""Optimizers of bitsandbytes and torchao that the core runs with its own 8-bit moments."""

import hashlib
import importlib.util
import weakref
from types import SimpleNamespace

import models
import pytest
import torch
import world
import zeroshard

WIDTH = 40
STEPS = 4

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("bitsandbytes"), reason="bitsandbytes is not installed")


class Layers(torch.nn.Module):
    """Two matrices with 8-bit moments, an embedding and small biases."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(100, 64)
        self.first, self.second = torch.nn.Linear(64, 80), torch.nn.Linear(80, 64)

    def forward(self, rows):
        return self.second(torch.tanh(self.first(self.embed(rows))))


def made(kind, model, **settings):
    import bitsandbytes

    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0, "lr": 2e-3},
    ]
    return getattr(bitsandbytes.optim, kind)(groups, **({"lr": 1e-2, "weight_decay": 0.1} | settings))


def train_embedding(engine, first=0, last=STEPS, scheduler=None):
    for step in range(first, last):
        rows = torch.randint(0, 100, (12,), generator=torch.Generator().manual_seed(step))
        engine.backward(engine(models.share(rows, world.rank(), world.size())).pow(2).mean())
        engine.step()
        if scheduler is not None:
            scheduler.step()


def states_of(engine):
    keys = (
        ("exp_avg", "exp_avg_sq")
        if len(engine.optimizer.state_names(engine._run.core.slice(0, 0))) == 2
        else ("exp_avg",)
    )
    for param in engine.module.parameters():
        yield zeroshard.get_master_weight(param)
        for key in keys:
            yield zeroshard.get_optimizer_state(param, key)


def digest_of(engine):
    digest = hashlib.sha256()
    for state in states_of(engine):
        digest.update(state.numpy().tobytes())
    return digest.hexdigest()


def start(stage, kind="AdamW8bit", config=None, **settings):
    model = Layers()
    optimizer = made(kind, model, **settings)
    return zeroshard.initialize(model=model, optimizer=optimizer, config=models.configuration(stage) | (config or {}))[
        0
    ]


def moment_bytes(engine):
    return sum(planned for category, _, planned, _ in engine._run.core.memory() if category == "moments")


def run_of_stage(stage, kind, settings):
    engine = start(stage, kind, **settings)
    train_embedding(engine)
    return [digest_of(engine), moment_bytes(engine)]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("AdamW8bit", {}), ("PagedAdamW8bit", {}), ("Adam", {"optim_bits": 8}), ("PagedLion8bit", {}), ("AdamW32bit", {})],
)
def test_one_digest_at_all_stages(kind, settings):
    for ranks in (1, 3):
        found = [world.run_ranks(ranks, run_of_stage, stage=s, kind=kind, settings=settings) for s in range(4)]
        assert [r.error for each in found for r in each] == [None] * 4 * ranks
        assert len({r.value[0] for each in found for r in each}) == 1
        bits = "fp32" if "32" in kind else "8-bit"
        told = f"{kind} of bitsandbytes runs in the core with {bits} moments"
        assert [told in r.log for r in found[1]] == [True] + [False] * (ranks - 1), found[1][0].log
        assert ("is_paged" in found[1][0].log) == ("Paged" in kind)


def beside_key(kind, value, settings):
    engine = start(1, kind, config={"zeroshard": {"moment_dtype": value}} if value else None, **settings)
    train_embedding(engine)
    return [digest_of(engine), moment_bytes(engine)]


def test_the_key_decides_for_an_optimizer_of_32_bits():
    """An 8-bit object decides itself, also where its `min_8bit_size` leaves all moments in fp32."""
    found, told = {}, {}
    for kind, value, settings in (
        ("AdamW32bit", None, {}),
        ("AdamW32bit", "int8", {}),
        ("AdamW32bit", "bf16", {}),
        ("AdamW8bit", None, {}),
        ("AdamW8bit", "int8", {"min_8bit_size": 10_000}),
    ):
        (rank,) = world.run_ranks(1, beside_key, kind=kind, value=value, settings=settings)
        assert rank.error is None, rank.log
        found[kind, value] = rank.value
        told[kind, value] = next(line.split(" with ")[1] for line in rank.log.splitlines() if "in the core" in line)
    wide = found["AdamW32bit", None]
    assert found["AdamW32bit", "int8"] == found["AdamW8bit", None]
    assert found["AdamW8bit", "int8"] == wide
    assert found["AdamW32bit", "bf16"][1] * 2 == wide[1]
    assert [text.partition(" ")[0] for text in told.values()] == ["fp32", "8-bit", "bf16", "8-bit", "fp32"]


def core_beside_object(kind, settings):
    """The core's AdamW of a configuration with int8, and the object: the same bits, groups and schedule."""
    model, other = Layers(), Layers()
    optimizer, plain = made(kind, model, **settings), torch.optim.AdamW(made(kind, other, **settings).param_groups)
    engines = []
    for each, own, block in ((model, optimizer, {}), (other, plain, {"zeroshard": {"moment_dtype": "int8"}})):
        engine = zeroshard.initialize(model=each, optimizer=own, config=models.configuration(2) | block)[0]
        train_embedding(engine, scheduler=torch.optim.lr_scheduler.StepLR(own, 2, 0.1))
        engines.append(engine)
    assert engines[0].optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)
    assert moment_bytes(engines[0]) == moment_bytes(engines[1])
    assert digest_of(engines[0]) == digest_of(engines[1])
    return True


@pytest.mark.parametrize("kind", ["AdamW8bit", "Adam8bit"])
def test_the_core_updates_as_its_own_adamw(kind):
    """bitsandbytes decays weights in Adam as in AdamW."""
    assert world.run(2, core_beside_object, kind=kind, settings={}) == [True, True]


def library_beside_core(kind):
    """Near the library, whose CPU code takes other codes for some values. `eps` suits rows without gradients."""
    engine, model = start(1, kind, eps=1e-3), Layers()
    library = made(kind, model, eps=1e-3)
    start_of = {name: param.detach().clone() for name, param in model.named_parameters()}
    for step in range(STEPS):
        rows = torch.randint(0, 100, (12,), generator=torch.Generator().manual_seed(step))
        library.zero_grad()
        model(rows).pow(2).mean().backward()
        library.step()
    train_embedding(engine)
    for (name, theirs), ours in zip(model.named_parameters(), engine.module.parameters(), strict=True):
        moved = (theirs - start_of[name]).norm()
        assert (theirs - zeroshard.get_master_weight(ours)).norm() < 0.005 * moved, name
    return True


@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamW32bit"])
def test_the_core_follows_the_library(kind):
    assert world.run(1, library_beside_core, kind=kind) == [True]


def with_overrides(how):
    """Trainer registers embeddings so."""
    import bitsandbytes

    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    manager.initialize()
    sizes = []
    for overrides in (False, True):
        model = Layers()
        settings = {"min_8bit_size": 6000} if overrides and how == "size" else {}
        optimizer = made("AdamW8bit", model, **settings)
        if overrides and how == "module":
            manager.register_module_override(model.embed, "weight", {"optim_bits": 32})
        if overrides and how == "parameter":
            manager.override_config(model.embed.weight, "optim_bits", 32)
        engine = zeroshard.initialize(model=model, optimizer=optimizer, config=models.configuration(1))[0]
        train_embedding(engine)
        sizes.append(moment_bytes(engine))
        manager.initialize()
    return sizes


@pytest.mark.parametrize(("how", "wide"), [("module", 6400), ("parameter", 6400), ("size", 2 * 5120)])
def test_parameters_keep_fp32_where_the_library_keeps_it(how, wide):
    coded, other = world.run(1, with_overrides, how=how)[0]
    assert other - coded == pytest.approx(wide * 2 * (3 - 4 / 256), rel=0.15)  # groups end with padding


def resumed(folder, load):
    """Saved by two ranks, and loaded by three: the states of fp32 that the file has, and steps after them."""
    engine = start(3 if load else 2)
    if not load:
        train_embedding(engine)
        engine.save_checkpoint(folder)
        engine.wait_for_checkpoint()
        return digest_of(engine)
    engine.load_checkpoint(folder)
    assert engine.optimizer.param_groups[1]["lr"] == 2e-3
    found = digest_of(engine)
    train_embedding(engine, STEPS, STEPS + 2)
    return found


def test_other_ranks_go_on(tmp_path):
    saved = world.run(2, resumed, folder=str(tmp_path), load=False)
    assert set(world.run(3, resumed, folder=str(tmp_path), load=True)) == set(saved)


def states_of_the_library():
    """States of an optimizer that has already trained by itself."""
    model, other = Layers(), Layers()
    optimizer = made("AdamW8bit", model)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.arange(12) + step).pow(2).mean().backward()
        optimizer.step()
    expected = []
    for param in model.parameters():
        state = optimizer.state[param]
        for slot in (1, 2):
            values = state[f"state{slot}"]
            if values.dtype == torch.uint8:
                scales = state[f"absmax{slot}"].repeat_interleave(256)[: values.numel()]
                values = (state[f"qmap{slot}"][values.flatten().long()] * scales).view(values.shape)
            expected.append(values.clone())
    engine = zeroshard.initialize(model=model, optimizer=optimizer, config=models.configuration(2))[0]
    params = list(engine.module.parameters())
    found = [zeroshard.get_optimizer_state(param, key) for param in params for key in ("exp_avg", "exp_avg_sq")]
    for got, want in zip(found, expected, strict=True):
        assert (got - want).abs().max() <= 2e-6 * want.abs().max()
    assert set(dict(engine._run.core.updates()).values()) == {3}
    assert other is not None
    return True


def test_states_of_the_library_are_taken():
    assert world.run(2, states_of_the_library) == [True, True]


def decoded_at_a_time():
    """Bytes of the largest state that is decoded, and of all decoded states that live at once, at most."""
    from zeroshard import low_bit

    decode, live, largest, most = low_bit._decoded, [], 0, 0

    def watched(*arguments):
        nonlocal largest, most
        state = decode(*arguments)
        if not state.is_meta:
            live.append(weakref.ref(state))
            sizes = [each().nbytes for each in live if each() is not None]
            largest, most = max(largest, state.nbytes), max(most, sum(sizes))
        return state

    low_bit._decoded = watched
    states_of_the_library()
    return largest, most


def test_states_of_the_library_are_decoded_one_parameter_after_another():
    assert world.run(2, decoded_at_a_time) == [[4 * 6400, 2 * 4 * 6400]] * 2


REFUSED = [
    ({"percentile_clipping": 5}, "percentile_clipping = 5: set 100, and gradient_clipping in the configuration"),
    ({"block_wise": False}, "block_wise = False: .*set True"),
    ({"skip_zeros": True}, "skip_zeros = True: .*set False"),
    ({"max_unorm": 0.5}, "max_unorm = 0.5: .*set 0"),
    ({"optim_bits": 4}, "optim_bits = 4: states have 8 or 32 bits"),
]


def refused(settings, told):
    args = SimpleNamespace(
        **({"optim_bits": 8, "min_8bit_size": 4096, "max_unorm": 0.0, "skip_zeros": False} | settings)
    )
    with pytest.raises(ValueError, match=f"AdamW of bitsandbytes: {told}"):
        start(2, "AdamW", args=args)
    start(2)  # the ranks are still together
    return True


@pytest.mark.parametrize(("settings", "told"), REFUSED, ids=lambda value: next(iter(value)) if value is dict else None)
def test_settings_of_another_meaning_are_refused_on_all_ranks(settings, told):
    assert world.run(2, refused, settings=settings, told=told) == [True, True]


def conflicts():
    for value in ("bf16", "fp32"):
        with pytest.raises(ValueError, match=f'zeroshard.moment_dtype = "{value}": AdamW8bit of bitsandbytes stores'):
            start(2, config={"zeroshard": {"moment_dtype": value}})
    start(2, config={"zeroshard": {"moment_dtype": "int8"}})
    import bitsandbytes

    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    manager.initialize()
    model = Layers()
    manager.override_config(model.first.weight, "lr", 0.5)
    with pytest.raises(ValueError, match="GlobalOptimManager's lr = 0.5: make a param group of its own"):
        zeroshard.initialize(model=model, optimizer=made("AdamW8bit", model), config=models.configuration(1))
    manager.initialize()
    return True


def test_conflicts_are_refused_on_all_ranks():
    assert world.run(2, conflicts) == [True, True]


def one_differs():
    with pytest.raises(ValueError, match="8-bit moments"):
        start(2, "AdamW8bit" if world.rank() == 1 else "AdamW32bit")
    return True


def update_of_ones_own():
    import bitsandbytes

    class Cautious(bitsandbytes.optim.AdamW8bit):
        def update_step(self, group, p, gindex, pindex):
            raise AssertionError("the core would not call this")

    model = Layers()
    config = models.configuration(0) | {"zero_allow_untested_optimizer": True}
    engine = zeroshard.initialize(model=model, optimizer=Cautious(model.parameters(), lr=1e-2), config=config)[0]
    with pytest.raises(AssertionError, match="the core would not call this"):
        train_embedding(engine)
    return True


def test_an_update_of_ones_own_does_not_run_in_the_core():
    assert world.run(1, update_of_ones_own) == [True]


def group_of_another_optimizer():
    """Param groups with settings that bitsandbytes does not read, as those of torch.optim.Adam in a checkpoint."""
    digests = []
    for settings in ({}, {"decoupled_weight_decay": False, "maximize": True, "amsgrad": True}):
        model = Layers()
        optimizer = made("AdamW8bit", model)
        for group in optimizer.param_groups:
            group |= settings
        engine = zeroshard.initialize(model=model, optimizer=optimizer, config=models.configuration(1))[0]
        train_embedding(engine)
        digests.append(digest_of(engine))
    return digests


def test_settings_that_the_library_does_not_read_have_no_effect():
    (digests,) = world.run(1, group_of_another_optimizer)
    assert digests[0] == digests[1]


def test_ranks_must_agree():
    assert world.run(2, one_differs) == [True, True]


def of_torchao(stage, kind="AdamW8bit", **settings):
    import torchao.optim

    model = Layers()
    optimizer = getattr(torchao.optim, kind)(model.parameters(), lr=1e-2, **settings)
    return zeroshard.initialize(model=model, optimizer=optimizer, config=models.configuration(stage))[0]


def run_of_torchao(stage):
    engine = of_torchao(stage, bf16_stochastic_round=True)
    train_embedding(engine)
    return [digest_of(engine), moment_bytes(engine)]


def refused_of_torchao():
    for settings, told in (
        ({"block_size": 128}, "block_size = 128: a scale has 256 elements: set 256"),
        ({"amsgrad": True}, "amsgrad = True: the largest second moments are not stored: set False"),
    ):
        with pytest.raises(ValueError, match=f"AdamW8bit of torchao: {told}"):
            of_torchao(2, **settings)
    with pytest.raises(ValueError, match="AdamW4bit of torchao keeps its states"):
        of_torchao(2, "AdamW4bit")
    return True


needs_torchao = pytest.mark.skipif(not importlib.util.find_spec("torchao"), reason="torchao is not installed")


@needs_torchao
def test_torchao_runs_in_the_core_at_all_stages():
    found = [world.run_ranks(3, run_of_torchao, stage=stage) for stage in (0, 1, 3)]
    assert [rank.error for ranks in found for rank in ranks] == [None] * 9
    assert len({rank.value[0] for ranks in found for rank in ranks}) == 1
    told = "AdamW8bit of torchao runs in the core with 8-bit moments; without effect: bf16_stochastic_round"
    assert [told in rank.log for rank in found[1]] == [True, False, False]


@needs_torchao
def test_settings_of_torchao_are_refused_on_all_ranks():
    assert world.run(2, refused_of_torchao) == [True, True]
