"""Problems that people had with DeepSpeed, by their symptoms. docs/from-deepspeed.md lists them, with other tests."""

import ast
import functools
import re

import models
import pytest
import torch
import world
from built import REPOSITORY, TESTS
from test_compat_alias import CHECK, python
from zeroshard.compat import deepspeed

GUIDE = REPOSITORY / "docs" / "from-deepspeed.md"


def make_deepspeed_engine(model, stage, accumulation=1, micro=2, **blocks):
    blocks = {"optimizer": models.adamw(eps=1e-3), "gradient_clipping": 0.1, **blocks}
    config = models.configuration(stage, accumulation=accumulation, **blocks)
    trained = [param for param in model.parameters() if param.requires_grad]
    config["train_micro_batch_size_per_gpu"] = micro
    return deepspeed.initialize(model=model, config=config, model_parameters=trained)[0]


def loss_of_share(engine, samples):
    """Of this rank's share of a batch."""
    x, y = (models.share(each, world.rank(), world.size()) for each in samples)
    return torch.nn.functional.mse_loss(engine(x), y)


def digests_and_norms():
    """Three clipped steps at each stage and setting that must not count."""
    found = []
    settings = [(stage, {}) for stage in range(4)] + [
        (3, {"overlap_comm": False}), (2, {"overlap_comm": False, "contiguous_gradients": False}),
        (2, {"reduce_bucket_size": 10}), (3, {"stage3_prefetch_bucket_size": 0, "sub_group_size": 7}),
    ]  # fmt: skip
    for stage, zero in settings:
        engine = make_deepspeed_engine(models.stack(), stage, zero_optimization={"stage": stage, **zero})
        norms = []
        for step in range(3):
            engine.backward(loss_of_share(engine, models.vectors(step, 0, 4)))
            engine.step()
            norms.append(float(engine.get_global_grad_norm()))
        found.append([engine.parameter_digest(), norms])
        engine.destroy()
    return found


def test_norm_and_weights_depend_on_no_stage_overlap_or_bucket_size():
    """Problem 1: the norm is NaN with overlap_comm, ZeRO 2 and 3 differ, reduce_bucket_size changes convergence."""
    for found in world.run(2, digests_and_norms):
        assert all(one == found[0] for one in found), found
        assert all(norm > 0.1 for norm in found[0][1]), "nothing was clipped"


def accumulate(stage):
    """One batch as one micro-batch and as four; then three quarters of one, as at the end of an epoch."""
    results = []
    for pieces in (1, 4):
        engine = make_deepspeed_engine(models.stack(), stage, accumulation=pieces, micro=8 // pieces)
        told = []
        for step, left in enumerate([8, 8, 6]):
            x, y = (models.share(each, world.rank(), world.size())[:left] for each in models.vectors(step, 0, 16))
            parts = list(zip(x.split(8 // pieces), y.split(8 // pieces), strict=True))
            for number, (inputs, targets) in enumerate(parts):
                engine.set_gradient_accumulation_boundary(number + 1 == len(parts))
                loss = torch.nn.functional.mse_loss(engine(inputs), targets) / len(parts)
                engine.backward(loss, scale_wrt_gas=False)
                if number + 1 == len(parts):
                    engine.step()
            told.append(float(engine.get_global_grad_norm()))
        with torch.no_grad():
            told.append(float(loss_of_share(engine.eval(), models.vectors(9, 0, 16))))
        results.append(told)
        engine.destroy()
    return results


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_accumulation_gives_the_norm_and_loss_of_one_large_batch(stage):
    """Problem 8, with a last window of an epoch that is shorter."""
    for one, four in world.run(2, accumulate, stage=stage):
        assert four == pytest.approx(one, abs=1e-5)


def save_and_load_frozen(stage, folder):
    """The frozen weights of a resumed run, whose model was drawn anew."""

    def frozen(seed):
        model = models.stack(seed=seed)
        for param in model.blocks[:2].parameters():
            param.requires_grad_(False)
        return model

    engine = make_deepspeed_engine(frozen(0), stage)
    engine.backward(loss_of_share(engine, models.vectors(0, 0, 4)))
    engine.step()
    engine.save_checkpoint(folder)
    saved = engine.parameter_digest()
    again = make_deepspeed_engine(frozen(1), stage)
    other = again.parameter_digest()
    again.load_checkpoint(folder)
    return saved == again.parameter_digest() != other


@pytest.mark.parametrize("stage", [2, 3])
def test_frozen_weights_come_back_from_a_checkpoint(tmp_path, stage):
    """Problem 6: at stage 3 they were lost, and random after a resume."""
    assert world.run(2, save_and_load_frozen, stage=stage, folder=str(tmp_path)) == [True, True]


def adapters(stage):
    """fp32 adapters over a frozen bf16 model: what PEFT makes by default."""
    model = models.lora_llama().to(torch.bfloat16)
    for param in model.parameters():
        if param.requires_grad:
            param.data = param.data.float()
    for layer in model.model.layers:  # as PEFT's layers cast their input
        for low_rank in (layer.self_attn.q_proj, layer.mlp.down_proj):
            low_rank.forward = lambda x, own=low_rank: own.base(x) + own.up(own.down(x.float())).to(x.dtype)
    engine = make_deepspeed_engine(model, stage)
    losses = []
    for _ in range(4):
        loss = models.language_loss(engine, models.tokens(0, world.rank(), 2))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    dtypes = {str(param.dtype) for param in model.parameters() if param.requires_grad}
    return [
        *losses,
        sorted(dtypes),
        {str(p.dtype) for p in model.parameters() if not p.requires_grad} == {"torch.bfloat16"},
    ]


def test_fp32_adapters_train_over_a_bf16_model():
    """Problem 6: one dtype for all parameters is asked for, or the adapters are cast."""
    whole, sharded = (world.run(2, adapters, stage=stage) for stage in (0, 3))
    assert whole == sharded
    for *losses, dtypes, is_bf16 in sharded:
        assert losses[-1] < losses[0] and dtypes == ["torch.float32"] and is_bf16


def attributes(stage):
    """Of the parameters of an engine, which was made without zero.Init."""
    model = models.stack()
    early = [hasattr(param, "ds_id") for param in model.parameters()]
    engine = make_deepspeed_engine(model, stage)
    states = {param.ds_status.name for param in model.parameters() if hasattr(param, "ds_status")}
    shapes = [hasattr(param, "ds_id") and param.ds_shape == param.shape for param in model.parameters()]
    persist = {param.ds_persist for param in model.parameters() if hasattr(param, "ds_id")}
    engine.empty_partition_cache()
    engine.destroy()
    return [any(early), all(shapes), any(shapes), sorted(states), sorted(persist)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_parameters_of_an_engine_have_ds_status(ranks):
    """Problem 13: TRL reads it of each parameter at stage 3, on one rank, too, and without zero.Init."""
    state = "AVAILABLE" if ranks == 1 else "NOT_AVAILABLE"
    assert world.run(ranks, attributes, stage=3) == [[False, True, True, [state], [ranks == 1]]] * ranks
    assert world.run(ranks, attributes, stage=2) == [[False, False, False, [], []]] * ranks


def init_with_the_file():
    """zero.Init reads the whole file, before it is known how many ranks there are."""
    from zeroshard.compat import zero

    config = models.configuration(3, optimizer=models.adamw())
    config |= {"train_batch_size": 2 * 8 * world.size(), "gradient_accumulation_steps": 8}
    automatic = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}}
    for settings in (config, config | automatic | {"gradient_accumulation_steps": "auto"}):
        with zero.Init(config_dict_or_path=settings):
            model = models.stack()
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    return engine.get_batch_info()


def test_zero_init_takes_the_files_batch_sizes_and_auto():
    """Problem 12: "16 != 1 * 8 * 1", and a TypeError for "auto"."""
    assert world.run(2, init_with_the_file) == [[32, 2, 8]] * 2


# -- the tables of the guide -------------------------------------------------------------------------------------------


def section(title):
    """The guide's text between this title and the next one."""
    return re.split(r"\n##+ ", GUIDE.read_text().partition(f"# {title}\n")[2])[0]


def rows():
    """The number of a problem and the rest of its line."""
    return dict(re.findall(r"^\| (\d+) \|(.*)\|$", section("Problems people had with DeepSpeed"), re.M))


def names_of(title):
    """The names of a table, without patterns and modules' attributes, and whether zeroshard has them."""
    lines = re.findall(r"^\| (`[^|]*)\| ([^|]*)\|$", section(title), re.M)
    names = {name: not told.startswith("not here") for first, told in lines for name in re.findall(r"`([\w.]+)", first)}
    return {name: here for name, here in names.items() if name.strip("_.") and not name.endswith("_")}


def missing_members(names):
    engine = make_deepspeed_engine(models.stack(), 3)
    found = {}
    for name in names:
        try:
            functools.reduce(getattr, name.split("."), engine)
            found[name] = True
        except AttributeError:
            found[name] = False
    return sorted(name for name, here in names.items() if found[name] != here)


def test_the_engine_has_the_members_that_the_guide_says():
    names = {name: here for name, here in names_of("The engine").items() if not name.startswith("engine.")}
    assert len(names) > 70 and not all(names.values())
    assert world.run(1, missing_members, names=names) == [[]]


def test_deepspeed_has_the_names_that_the_guide_says():
    names = names_of("Names")
    assert len(names) > 50 and not all(names.values())
    listed = [f"deepspeed.{name}" for name in names]
    lines = python(f"names = {listed!r}\n{CHECK}").stdout.splitlines()
    missing = {line.split("|")[0] for line in lines}
    assert missing == {f"deepspeed.{name}" for name, here in names.items() if not here}


def functions_of(name):
    text = next(TESTS.rglob(name)).read_text()
    return {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def test_the_guide_names_a_test_or_a_reason_for_each_problem():
    assert set(rows()) == {str(number) for number in (*range(1, 10), 12, 13, 14, 16)}
    for number, row in rows().items():
        named = re.findall(r"`(test_\w+\.py)::(\w+)`", row)
        assert named or "not covered:" in row, f"row {number} has neither"
        for file, test in named:
            assert test in functions_of(file), f"row {number}: {file}::{test} does not exist"
