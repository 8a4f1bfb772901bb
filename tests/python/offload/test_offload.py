"""States, gradients and parameters on the host or in files, beside devices: what a user sees is as without offload.

test_placement_matrix.py compares digests and planned bytes.
"""

import functools
import tempfile

import models
import pytest
import simulated
import torch
import world
import zeroshard
from zeroshard.compat import fragments
from zeroshard.compat.deepspeed import initialize

pytestmark = simulated.needed
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
PARAMETERS = {"offload_param": {"device": "cpu"}}
FILE = {"device": "nvme", "nvme_path": tempfile.gettempdir()}  # files have no names there
IN_FILES = ("files", "gradient files", "file share")


def configuration(stage, dtype, offload, **blocks):
    """With ``offload``, states are on the host; at stage 3 parameters, too, if it is "parameters"; "files": there.

    "gradients": these stay on the device; "share": so does a part of the states; "alone": all of them. "mixed":
    parameters are in files, and states on the host; "gradient files": states and gradients are in files. "all share":
    parameters are on the host, with a part of the states; "file share": both are in files.
    """
    zero = {"stage3_gather_16bit_weights_on_model_save": True} | (OFFLOAD if offload and offload != "alone" else {})
    zero |= PARAMETERS if offload == "alone" else {}
    zero |= {"offload_param": FILE | {"max_in_cpu": 0}} if offload == "mixed" else {}
    zero |= PARAMETERS if offload == "parameters" and stage == 3 else {}
    if offload == "files":
        zero |= {"offload_optimizer": FILE} | ({"offload_param": FILE | {"max_in_cpu": 0}} if stage == 3 else {})
    if offload == "gradient files":
        zero["offload_optimizer"] = FILE
        blocks["zeroshard"] = {"offload": {"gradients": "nvme"}}
    if offload in ("share", "all share"):
        zero["offload_optimizer"] = {"device": "cpu", "ratio": 0.4}
    zero |= PARAMETERS if offload == "all share" and stage == 3 else {}
    if offload == "file share":
        zero["offload_optimizer"] = FILE | {"ratio": 0.4}
        zero |= {"offload_param": FILE | {"max_in_cpu": 0}} if stage == 3 else {}
    if offload == "gradients":
        blocks["zeroshard"] = {"offload": {"gradients": "device"}}
    blocks = {"optimizer": models.adamw(3e-3, weight_decay=0.01), "gradient_clipping": 0.5, **blocks}
    return models.configuration(stage, dtype, zero_optimization=zero, **blocks)


def make_offloaded_engine(stage, dtype, offload, groups=False, optimizer=None, **blocks):
    """Ties, a frozen layer and an unused one; with ``groups``, two param groups that cut units in pieces."""
    model = models.tied().to(world.device())
    parameters = None
    if groups:
        flat = [param for param in model.parameters() if param.requires_grad]
        parameters = [{"params": flat[::2], "lr": 1e-2}, {"params": flat[1::2], "weight_decay": 0.3}]
    config = configuration(stage, dtype, offload, **blocks)
    if optimizer:
        config.pop("optimizer")
    engine = initialize(model=model, model_parameters=parameters, optimizer=optimizer, config=config)[0]
    assert engine.zero_cpu_offload() == (bool(offload) and offload not in IN_FILES + ("alone",))
    return model, engine


def both(run, what=True):
    """What ``run`` returns without and with offload."""
    return [run(offload=offload) for offload in (False, what)]


def see_and_set(stage, dtype, what=True):
    """Weights, gradients and states of single parameters: read and set, whole and this rank's own."""

    def run(offload):
        model, engine = make_offloaded_engine(stage, dtype, offload)
        param, other = model.blocks[1].up.weight, model.first.weight
        seen = []
        for step in range(3):
            engine.backward(models.part_loss(engine, step))
            seen.append(fragments.safe_get_full_grad(param))
            fragments.safe_set_full_grad(other, torch.ones_like(seen[-1].new_empty(30, 10)) * 0.01)
            engine.step()
            seen.append(fragments.safe_get_full_fp32_param(param))
            seen.append(fragments.safe_get_full_optimizer_state(param, "exp_avg"))
            fragments.safe_set_full_fp32_param(param, seen[-2] * 0.9)
            fragments.safe_set_full_optimizer_state(other, torch.full((30, 10), 0.02), "exp_avg")
            with zeroshard.gathered(model.last.weight, modify_rank=0):
                if world.rank() == 0:
                    model.last.weight.data.mul_(0.5)
            seen.append(zeroshard.get_master_weight(model.last.weight))
        digest = engine.parameter_digest()
        engine.destroy()
        return [value.cpu() for value in seen], digest

    (seen, digest), (with_offload, same) = both(run, what)
    assert digest == same
    return [torch.equal(a, b) for a, b in zip(seen, with_offload, strict=True)]


@pytest.mark.parametrize(
    "ranks,dtype,stage,on,what",
    [
        (1, "bf16", 2, "lazy", True),
        (2, "bf16", 3, "late", True),
        (2, "fp32", 1, "lazy", True),
        (1, "bf16", 3, "lazy", "parameters"),
        (2, "fp32", 3, "lazy", "parameters"),
        (1, "fp32", 3, "lazy", "files"),
        (2, "bf16", 3, "late", "files"),
        (2, "bf16", 2, "late", "gradients"),
        (1, "bf16", 2, "lazy", "share"),
        (2, "fp32", 1, "late", "share"),
        (2, "fp32", 3, "lazy", "share"),
    ],
)
def test_single_parameters_are_read_and_set(ranks, dtype, stage, on, what):
    for equal in world.run(ranks, see_and_set, stage=stage, dtype=dtype, what=what, on=on, timeout_s=120):
        assert all(equal), equal


def write_and_read(stage, dtype, what=True):
    """What a user writes to a parameter is what its master weight is from then on; local parts lie on the device."""

    def run(offload):
        model, engine = make_offloaded_engine(stage, dtype, offload)
        models.train(engine, [0])
        param = model.blocks[0].up.weight
        with torch.no_grad():
            param.copy_(torch.ones_like(param))
        fragments.safe_set_full_fp32_param(param, fragments.safe_get_full_fp32_param(param) * 0.5)
        master = zeroshard.get_master_weight(param)
        local = zeroshard.get_master_weight(param, local=True)
        state = zeroshard.get_optimizer_state(param, "exp_avg", local=True)
        assert local.device == state.device == world.device()
        models.train(engine, [1])
        digest = engine.parameter_digest()
        engine.destroy()
        return master.cpu().unique().tolist(), digest

    return both(run, what)


@pytest.mark.parametrize("ranks,stage,on,what", [(1, 1, "lazy", True), (2, 2, "late", True), (2, 1, "lazy", "share")])
def test_a_users_write_is_the_master_weight(ranks, stage, on, what):
    run = {"stage": stage, "dtype": "fp32", "what": what}
    for without, with_offload in world.run(ranks, write_and_read, **run, on=on, timeout_s=120):
        assert with_offload == without and without[0] == [0.5]


def write_to_what_is_not_used_yet(stage, dtype, what=True):
    """A layer gets its first gradient after others were updated; what a user wrote to it before counts."""

    def run(offload):
        model, engine = make_offloaded_engine(stage, dtype, offload)
        later, used = model.blocks[0], []
        forward = later.forward
        later.forward = lambda x: forward(x) if used else x
        models.train(engine, range(2))
        for param in later.parameters():
            param.data.fill_(0.25)
        models.train(engine, range(2, 4))
        used.append(True)
        models.train(engine, range(4, 6))
        master = zeroshard.get_master_weight(next(later.parameters()))
        digest = engine.parameter_digest()
        engine.destroy()
        return master.cpu().flatten().tolist(), digest

    return both(run, what)


@pytest.mark.parametrize("ranks,stage,on,what", [(1, 2, "lazy", True), (2, 1, "late", "share"), (1, 3, "late", True)])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_write_to_what_has_no_gradient_yet_counts(ranks, stage, dtype, on, what):
    run = {"stage": stage, "dtype": dtype, "what": what}
    for without, with_offload in world.run(ranks, write_to_what_is_not_used_yet, **run, on=on, timeout_s=120):
        assert with_offload == without


def put_back(stage, dtype, folder, what=True):
    """Others' weights are put in, are taken for the run's, and the old ones come back: these count."""

    def run(how, offload):
        model, engine = make_offloaded_engine(stage, dtype, offload)
        params = [param for param in model.parameters() if param.requires_grad]
        models.train(engine, range(2))
        engine.save_checkpoint(folder, tag=f"{how}-{bool(offload)}")
        engine.wait_for_checkpoint()
        models.train(engine, range(2, 4))
        own = [param.data.clone() for param in params]
        if how == "set":
            for param in params:
                fragments.safe_set_full_fp32_param(param, torch.full(param.shape, 0.125))
        elif how == "load":
            engine.load_checkpoint(folder, tag=f"{how}-{bool(offload)}")
        elif how == "gathered":
            with zeroshard.gathered(params, modify_rank=0):
                for param in params:
                    param.data.fill_(0.125)
        else:
            for param in params:
                param.data.fill_(0.125)
        if how == "save":
            engine.save_checkpoint(folder, tag="others")
            engine.wait_for_checkpoint()
        elif how == "get":
            zeroshard.get_master_weight(params[0])
        for param, values in zip(params, own, strict=True):
            param.data.copy_(values)
        models.train(engine, range(5, 7))
        digest = engine.parameter_digest()
        engine.destroy()
        return digest

    hows = ("nothing", "get", "gathered", "set", "load", "save")
    return [both(functools.partial(run, how), what) for how in hows]


@pytest.mark.parametrize(
    "ranks,stage,dtype,on,what",
    [
        (1, 2, "bf16", "lazy", True),
        (2, 1, "fp32", "late", True),
        (1, 3, "fp16", "late", "gradients"),
        (2, 2, "fp32", "lazy", "share"),
        (2, 1, "bf16", "lazy", "files"),
    ],
)
def test_weights_that_are_put_back_count(tmp_path, ranks, stage, dtype, on, what):
    run = {"stage": stage, "dtype": dtype, "what": what, "folder": str(tmp_path)}
    for pairs in world.run(ranks, put_back, **run, on=on, timeout_s=240):
        assert all(without == with_offload for without, with_offload in pairs), pairs


def outside(stage, dtype, what=True):
    """The user's own optimizers get slices that lie on the host."""

    def run(name, offload):
        make_own = functools.partial(getattr(torch.optim, name), lr=1e-2)
        _, engine = make_offloaded_engine(stage, dtype, offload, optimizer=make_own)
        models.train(engine, range(3))
        assert {part.master.is_cpu for part in engine._run.core.slices()} == {bool(offload)}
        digest = engine.parameter_digest()
        engine.destroy()
        return digest

    return [both(functools.partial(run, name), what) for name in ("SGD", "Adagrad")]


@pytest.mark.parametrize(
    "ranks,dtype,stage,on,what",
    [(1, "bf16", 3, "lazy", True), (2, "fp32", 2, "late", True), (2, "bf16", 1, "late", "gradients")],
)
def test_optimizers_of_the_users_update_on_the_host(ranks, dtype, stage, on, what):
    for pairs in world.run(ranks, outside, stage=stage, dtype=dtype, what=what, on=on, timeout_s=120):
        assert all(without == with_offload for without, with_offload in pairs), pairs


def save_and_load(folder, stage, dtype, what=True):
    """Between tiers, ranks of one stage and another; exports and weights in 16 bits are the same files."""
    results = []
    for saves in (False, what):
        _, engine = make_offloaded_engine(stage, dtype, saves)
        models.train(engine, range(2))
        root = f"{folder}/{saves}"
        engine.save_checkpoint(root)
        engine.save_16bit_model(root, "whole.safetensors")
        saved = engine.parameter_digest()
        models.train(engine, range(2, 4))
        end = engine.parameter_digest()
        engine.destroy()
        for loads in (False, what):
            _, other = make_offloaded_engine(stage % 3 + 1, dtype, loads)
            models.train(other, [7])
            other.load_checkpoint(root)
            assert other.parameter_digest() == saved, (saves, loads)
            models.train(other, range(2, 4))
            assert other.parameter_digest() == end, (saves, loads)
            other.destroy()
        results.append(end)
    return results


@pytest.mark.parametrize(
    "ranks,dtype,stage,on,what",
    [
        (1, "bf16", 2, "lazy", True),
        (2, "fp32", 3, "late", True),
        (2, "bf16", 1, "lazy", True),
        (1, "bf16", 2, "lazy", "parameters"),  # loads at stage 3
        (2, "fp32", 3, "lazy", "parameters"),
        (1, "bf16", 3, "late", "files"),
        (2, "fp32", 2, "lazy", "files"),
        (2, "bf16", 2, "late", "gradients"),
        (1, "bf16", 1, "lazy", "share"),
        (2, "fp32", 2, "late", "share"),
    ],
)
def test_checkpoints_go_between_tiers(tmp_path, ranks, dtype, stage, on, what):
    run = {"folder": str(tmp_path), "stage": stage, "dtype": dtype, "what": what}
    by_rank = world.run(ranks, save_and_load, **run, on=on, timeout_s=240)
    assert len({digest for digests in by_rank for digest in digests}) == 1
    names = ["whole.safetensors", "rank-00000.safetensors"]
    for name in names[: 1 if what in IN_FILES else 2]:  # saves of files write in another order
        files = [next((tmp_path / str(saves)).rglob(name)).read_bytes() for saves in (False, what)]
        assert files[0] == files[1], name


def load_after_a_forward(folder, offload):
    """Units of a pass without a backward are still gathered, or about to be."""
    _, engine = make_offloaded_engine(3, "bf16", offload)
    models.train(engine, range(1))
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    saved = engine.parameter_digest()
    models.train(engine, range(1, 2))
    models.part_loss(engine, 5)
    engine.load_checkpoint(folder)
    return engine.parameter_digest() == saved


@pytest.mark.parametrize("offload", [None, True, "parameters"])
@pytest.mark.parametrize("on", ["late", "lazy"])
def test_a_load_waits_for_gathers_of_a_pass_without_a_backward(tmp_path, on, offload):
    folder = {"folder": str(tmp_path), "offload": offload}
    assert world.run(2, load_after_a_forward, **folder, on=on, timeout_s=120) == [True, True]


def evaluate_frozen(dtype):
    """A model that nobody trains leaves the device."""
    outputs, held = [], []
    for keys in ({}, PARAMETERS):
        model = models.tied().to(world.device()).requires_grad_(False)
        engine = initialize(model=model, config=models.configuration(3, dtype, zero_optimization=keys))[0].eval()
        lines = engine._run.core.memory()
        held.append([sum(line[2] for line in lines if line[1] == tier) for tier in ("device", "host")])
        with torch.no_grad():
            x = models.vectors(0, 0, 4)[0].to(next(model.parameters()).dtype)
            outputs += [engine(x).float().cpu() for _ in range(2)]
        engine.destroy()
    return [torch.equal(outputs[0], output) for output in outputs], held


@pytest.mark.parametrize("ranks,dtype,on", [(1, "bf16", "lazy"), (2, "fp32", "late")])
def test_frozen_models_leave_the_device_alone(ranks, dtype, on):
    for equal, (without, with_offload) in world.run(ranks, evaluate_frozen, dtype=dtype, on=on, timeout_s=120):
        assert all(equal) and without[1] == 0 and with_offload[1] > 0, (without, with_offload)
        # On one rank there is no gather without offload, and none is held beside the parameters.
        assert ranks == 1 or with_offload[0] == without[0] - with_offload[1]


def refused(zero=None, own=None, outside=None):
    """What initialize says of these keys, on ranks with a device; ``outside``: an optimizer of the user's."""
    blocks = {} if outside else {"optimizer": models.adamw(1e-3)}
    config = models.configuration(2, zero_optimization=zero or {}, zeroshard=own or {}, **blocks)
    with pytest.raises(zeroshard.ConfigError) as error:
        initialize(model=models.tied().to(world.device()), optimizer=outside, config=config)
    return str(error.value)


def refuse_gradients_and_shares():
    host, share = {"offload_optimizer": {"device": "cpu"}}, {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}
    gradients = [{"offload": {"gradients": place}} for place in ("nvme", "cpu")]
    own = functools.partial(torch.optim.RMSprop, lr=0.1)
    return [
        refused(zero=host, own=gradients[0]),
        refused(own=gradients[1]),
        refused(zero=share, own=gradients[1]),
        refused(zero=share, outside=own),
    ]


@pytest.mark.parametrize("ranks", [1, 2])
def test_where_gradients_and_a_share_cannot_be(ranks):
    for files, alone, part, outside in world.run(ranks, refuse_gradients_and_shares, on="lazy", timeout_s=120):
        assert 'offload.gradients = "nvme": reduced gradients lie in files beside the optimizer states' in files
        assert 'offload_optimizer.device is "cpu": set that to "nvme", with an nvme_path' in files
        assert 'zeroshard.offload.gradients = "cpu": ' in alone and 'set that to "cpu" or "nvme"' in alone
        assert 'zeroshard.offload.gradients = "cpu": ' in part and 'set "auto" or "device", or ratio to 1' in part
        assert "ratio = 0.5: RMSprop is an optimizer of your own" in outside and "set 1 or 0" in outside
