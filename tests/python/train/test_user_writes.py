"""What users write to parameters counts on all ranks, master weights included, or is an error that names one."""

import copy

import models
import pytest
import torch
import world
import zeroshard
from errors import text_of

DTYPES = ("fp32", "bf16", "fp16")
SMALL = [(1, 0, "bf16"), (2, 0, "fp16"), (2, 1, "fp32"), (3, 2, "bf16"), (2, 3, "bf16"), (3, 3, "fp32")]
ALL = [(ranks, stage, dtype) for ranks in (1, 2, 3, 4) for stage in (0, 1, 2, 3) for dtype in DTYPES]


def worlds(release):
    return ALL if release else SMALL


def initialize(stage, dtype, rate=0.0, optimizer=None, persistent=40):
    config = models.configuration(stage, dtype, threshold=persistent, fp16={"initial_scale_power": 4})
    if optimizer is None:
        config["optimizer"] = models.sgd(rate)
    model = models.stack()
    return zeroshard.initialize(model=model, config=config, optimizer=optimizer)[0], model


def step(engine):
    x, y = models.vectors(0, world.rank(), 2)
    loss = torch.nn.functional.mse_loss(engine(x.to(next(engine.parameters()).dtype)).float(), y)
    engine.backward(loss)
    engine.step()


def values(model):
    with zeroshard.gathered(model.parameters()):
        return {name: param.detach().float().clone() for name, param in model.named_parameters()}


@torch.no_grad()
def write(module, how):
    """All of a module's parameters; by the tensor, around its version counter, and by a state_dict."""
    if how == "state_dict":
        module.load_state_dict({name: torch.full_like(p, 0.25) for name, p in module.state_dict().items()})
    for param in module.parameters():
        if how == "in place":
            param.clamp_(-0.01, 0.01)
        elif how == "data":
            param.data.mul_(0.5)
        elif how == "init":
            torch.nn.init.constant_(param, -0.125)


WAYS = ("in place", "data", "state_dict", "init")


def write_everywhere(stage, dtype, outside):
    """Whether what was written is there after a step of the rate 0, and in a checkpoint; of each way."""
    kept = []
    for how in WAYS:
        rate = {"optimizer": lambda params: torch.optim.RMSprop(params, lr=0.0)} if outside else {}
        engine, model = initialize(stage, dtype, **rate)
        step(engine)
        whole = stage < 3 or world.size() == 1
        # At stage 3 those are whole that are small, from the forward on that needs them.
        expected = copy.deepcopy(values(model))
        if whole:
            write(model.blocks[1], how)
            expected = values(model)
        step(engine)
        now = values(model)
        kept.append(all(torch.equal(expected[name], now[name]) for name in expected))
    return kept


@pytest.mark.row("U3")
@pytest.mark.fault
def test_what_all_ranks_write_counts(release):
    for ranks, stage, dtype in worlds(release):
        for outside in (False, True) if release else (dtype == "fp16",):
            answers = world.run(ranks, write_everywhere, stage=stage, dtype=dtype, outside=outside)
            assert answers == [[True] * len(WAYS)] * ranks, (ranks, stage, dtype, outside)


def train_with_clipped_weights(stage, dtype):
    """Weights that are clipped after each step, as critics' are: here, and in plain PyTorch with fp32 masters."""
    engine, model = initialize(stage, dtype, rate=0.5)
    masters = {name: value.clone() for name, value in values(model).items()}
    reference = models.stack()
    own = next(model.parameters()).dtype
    for _ in range(3):
        step(engine)
        for param in model.parameters():
            param.data.clamp_(-0.02, 0.02)
        for name, param in reference.named_parameters():
            param.data = masters[name].to(own)
        reference.zero_grad()
        x, y = models.vectors(0, 0, 2)
        torch.nn.functional.mse_loss(reference(x.to(own)).float(), y).backward()
        for name, param in reference.named_parameters():
            masters[name] -= 0.5 * param.grad.float()
            rounded = masters[name].to(own)
            clipped = rounded.clamp(-0.02, 0.02)
            masters[name] = torch.where(clipped == rounded, masters[name], clipped.float())
    # Whether each step started from what was clipped, to the rounding of one update.
    now = values(model)
    return max((now[name] - masters[name].to(own).float().clamp(-0.02, 0.02)).abs().max().item() for name in now)


def test_training_goes_on_from_what_was_written():
    (difference,) = world.run(1, train_with_clipped_weights, stage=1, dtype="bf16")
    assert difference < 1e-3  # some units of the last place in bf16: the update rounds once, the reference twice


def save_what_was_written(directory, stage, dtype):
    engine, model = initialize(stage, dtype)
    step(engine)
    write(model.head, "data")
    expected = values(model)
    engine.save_checkpoint(directory)
    engine.wait_for_checkpoint()
    engine, model = initialize(stage, dtype)
    engine.load_checkpoint(directory)
    now = values(model)
    return all(torch.equal(expected[name], now[name]) for name in expected)


@pytest.mark.parametrize("ranks,stage,dtype", [(1, 1, "bf16"), (2, 0, "fp16"), (2, 2, "bf16"), (2, 1, "fp32")])
def test_a_checkpoint_has_what_was_written(ranks, stage, dtype, tmp_path):
    assert world.run(ranks, save_what_was_written, directory=str(tmp_path), stage=stage, dtype=dtype) == [True] * ranks


def write_on_one_rank(stage, dtype, how):
    """What a step says on each rank after rank 0 alone, or each rank something else, was written."""
    engine, model = initialize(stage, dtype)
    step(engine)
    target = model.blocks[1].up.weight
    if stage == 3:
        return [text_of(lambda: target.data.zero_())]
    if how == "alone" and world.rank() == 0:
        target.data.flatten()[0]  # reading is no write
        with torch.no_grad():
            target.zero_()
    elif how == "differently":
        with torch.no_grad():
            target.fill_(world.rank())
    return [text_of(lambda: step(engine))]


@pytest.mark.row("U3")
@pytest.mark.fault
def test_what_ranks_write_differently_is_named_on_every_rank(release):
    for ranks, stage, dtype in worlds(release):
        for how in ("alone", "differently") if ranks > 1 else ():
            for (said,) in world.run(ranks, write_on_one_rank, stage=stage, dtype=dtype, how=how):
                assert said and "'blocks.1.up.weight'" in said and "gathered(" in said, (ranks, stage, dtype, how, said)
                assert stage == 3 or "not the same on every rank" in said


def write_while_reading(stage, dtype, how, who):
    engine, model = initialize(stage, dtype)
    step(engine)

    def context():
        with zeroshard.gathered(model.blocks[1].parameters()), torch.no_grad():
            if who == "all" or world.rank() == 0:
                weight = model.blocks[1].up.weight
                {"in place": weight.zero_, "data": weight.data.zero_}[how]()

    return text_of(context)


@pytest.mark.row("U3")
@pytest.mark.fault
def test_writes_inside_gathered_need_modify_rank(release):
    for ranks, stage, dtype in worlds(release):
        for how, who in [("in place", "all"), ("data", "rank 0")]:
            answers = world.run(ranks, write_while_reading, stage=stage, dtype=dtype, how=how, who=who)
            for rank, said in enumerate(answers):
                if who == "all" or rank == 0:
                    assert said and "parameter 'blocks.1.up.weight' was written inside zeroshard.gathered" in said
                    assert "pass modify_rank=0" in said
                else:
                    assert said is None


def read_and_modify(stage, dtype):
    """Nothing is an error here: reading, modifying inside of reading, training inside of reading, a failed change."""
    engine, model = initialize(stage, dtype, rate=0.1)
    weight = model.blocks[1].up.weight
    step(engine)
    with zeroshard.gathered(model.parameters()):
        total = sum(param.sum().item() for param in model.parameters())
        with zeroshard.gathered(weight, modify_rank=0), torch.no_grad():
            if world.rank() == 0:
                weight.fill_(0.5)
    step(engine)
    with zeroshard.gathered(weight):
        step(engine)
    said = text_of(lambda: fail_inside(weight))
    return [total == total, weight.shape == (models.inner_width(10), 10), said]


def fail_inside(weight):
    with zeroshard.gathered(weight, modify_rank=0), torch.no_grad():
        weight.zero_()
        raise RuntimeError("my own")


@pytest.mark.parametrize("ranks,stage,dtype", SMALL)
def test_what_is_allowed_inside_gathered(ranks, stage, dtype):
    assert world.run(ranks, read_and_modify, stage=stage, dtype=dtype) == [[True, True, "my own"]] * ranks


def fail_half_way(stage, dtype, how, around, persistent):
    """Whether a change that failed left the values from before, and training the bits of a run without it."""
    digests = []
    for fails in (True, False):
        engine, model = initialize(stage, dtype, rate=0.1, persistent=persistent)
        weight = model.blocks[1].up.weight
        step(engine)
        if fails:
            before = values(model)
            outer = model.parameters() if around != "nothing" else []
            with zeroshard.gathered(outer, modify_rank=0 if around == "modifying" else None):
                assert text_of(lambda args=(model.blocks[1], weight, how): change_and_fail(*args)) == "my own"
            same = all(torch.equal(before[name], value) for name, value in values(model).items())
        step(engine)
        digests.append(engine.parameter_digest())
    # What is taken in 16 bits becomes the master weight, whoever wrote it.
    return [same, digests[0] == digests[1] or (around == "modifying" and dtype != "fp32")]


def change_and_fail(module, weight, how):
    with zeroshard.gathered(weight, modify_rank=0):
        if how == "assign":
            weight.data = torch.full_like(weight, 7.0)
        elif how == "share":
            write(module, "in place")
            module.share_memory()
        else:
            write(module, how)
        raise RuntimeError("my own")


@pytest.mark.row("U3")
@pytest.mark.fault
@pytest.mark.parametrize("around", ["nothing", "reading", "modifying"])
@pytest.mark.parametrize("how", ["in place", "data", "assign", "share"])
def test_a_change_that_fails_is_dropped(release, how, around):
    cases = worlds(release) if release or how == "in place" else [(1, 1, "bf16"), (2, 2, "fp32"), (2, 3, "bf16")]
    for ranks, stage, dtype in cases:
        for persistent in (40, 10000) if stage == 3 else (40,):
            case = {"stage": stage, "dtype": dtype, "how": how, "around": around, "persistent": persistent}
            assert world.run(ranks, fail_half_way, **case) == [[True, True]] * ranks, (ranks, case)


def modify_within_what_fails(stage):
    """What was taken inside stays; what the context around it wrote after that does not."""
    engine, model = initialize(stage, "fp32")
    step(engine)
    weight, bias = model.blocks[1].up.weight, model.blocks[1].up.bias
    with pytest.raises(RuntimeError, match="my own"), zeroshard.gathered(weight, modify_rank=0), torch.no_grad():
        with zeroshard.gathered(weight, modify_rank=0):
            weight.fill_(0.5)
        bias.fill_(7.0)
        raise RuntimeError("my own")
    step(engine)
    now = values(model)
    return [bool((now["blocks.1.up.weight"] == 0.5).all()), bool((now["blocks.1.up.bias"] != 7.0).all())]


@pytest.mark.parametrize("ranks,stage", [(1, 0), (2, 1), (2, 3)])
def test_what_was_taken_inside_of_a_change_that_fails_stays(ranks, stage):
    assert world.run(ranks, modify_within_what_fails, stage=stage) == [[True, True]] * ranks


def read_after_a_reading_that_failed(stage):
    engine, model = initialize(stage, "fp32")
    weight = model.blocks[1].up.weight
    with pytest.raises(RuntimeError, match="my own"), zeroshard.gathered(weight):
        raise RuntimeError("my own")
    with torch.no_grad():
        weight.fill_(0.5)  # on all ranks
    return text_of(lambda: values(model))


def test_a_reading_that_failed_is_over():
    assert world.run(2, read_after_a_reading_that_failed, stage=1) == [None, None]


def write_in_forward(who):
    """What two steps say after ranks wrote to a unit that was whole for its forward; the bits with and without it."""
    said, digests = [], []
    for writes in (True, False):
        engine, model = initialize(3, "fp32", rate=0.1)

        def spoil(module, args):
            with torch.no_grad():
                module.up.weight.zero_()

        step(engine)
        if writes:
            hook = model.blocks[1].register_forward_pre_hook(spoil) if world.rank() in who else None
            held = zeroshard.gathered(model.blocks[1].parameters())
            held.__enter__()  # so that it stays whole
            said.append(text_of(lambda engine=engine: step(engine)))
            if hook is not None:
                hook.remove()
            engine.zero_grad()
        step(engine)
        if writes:
            said.append(text_of(lambda held=held: held.__exit__(None, None, None)))
        digests.append(engine.parameter_digest())
    return [said, digests[0] == digests[1]]


@pytest.mark.row("U3")
@pytest.mark.parametrize("who", [[0], [0, 1]])
def test_what_is_written_to_a_sharded_unit_is_one_error_and_lost(who):
    for (first, later), same in world.run(2, write_in_forward, who=who):
        assert "'blocks.1.up.weight' was written outside of zeroshard.gathered" in first
        assert later is None and same


def update_inside_gathered(stage, dtype, directory):
    """What step() and a load do to parameters that are gathered: to be read, and to be modified."""
    engine, model = initialize(stage, dtype, rate=0.1)
    weight = model.blocks[1].up.weight
    engine.save_checkpoint(directory, tag="first")
    engine.wait_for_checkpoint()
    with zeroshard.gathered(weight):
        before = weight.double().sum().item()
        step(engine)
        after = weight.double().sum().item()
        engine.load_checkpoint(directory, tag="first")
        loaded = weight.double().sum().item()
    step(engine)
    with zeroshard.gathered(weight):
        again = weight.double().sum().item()
    said = []
    with zeroshard.gathered(weight, modify_rank=0), torch.no_grad():
        if world.rank() == 0:
            weight.fill_(7)
        said.append(text_of(engine.step))
        said.append(text_of(lambda: engine.load_checkpoint(directory, tag="first")))
    with zeroshard.gathered(weight):
        values = (weight.min().item(), weight.max().item())
    return before, after, loaded, again, said, values


@pytest.mark.row("U3")
@pytest.mark.fault
def test_updates_inside_gathered(tmp_path, release):
    for ranks, stage, dtype in worlds(release):
        directory = str(tmp_path / f"{ranks}-{stage}-{dtype}")
        for answer in world.run(ranks, update_inside_gathered, stage=stage, dtype=dtype, directory=directory):
            before, after, loaded, again, said, values = answer
            assert after == again != before == loaded, (ranks, stage, dtype, answer)
            assert "step() inside zeroshard.gathered(" in said[0] and "load_checkpoint() inside" in said[1], said
            assert tuple(values) == (7, 7), (ranks, stage, dtype, answer)
