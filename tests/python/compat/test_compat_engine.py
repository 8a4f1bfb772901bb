"""The engine of DeepSpeed scripts: calls, meanings, several engines of one process, and ones without an optimizer."""

import inspect
import json
import os

import models
import pytest
import torch
import torch.distributed as dist
import world
import zeroshard
from deepspeed_engines import make
from errors import message_of
from zeroshard.compat.deepspeed import DeepSpeedEngine, initialize

# -- calls -------------------------------------------------------------------------------------------------------------


def test_methods_have_signatures():
    """Trainer inspects them, and passes what it finds there."""
    expected = {
        "backward": ["loss", "retain_graph", "scale_wrt_gas"],
        "step": ["lr_kwargs"],
        "save_checkpoint": [
            "save_dir",
            "tag",
            "client_state",
            "save_latest",
            "exclude_frozen_parameters",
            "rank_state",
        ],
        "load_checkpoint": [
            "load_dir",
            "tag",
            "load_module_strict",
            "load_optimizer_states",
            "load_lr_scheduler_states",
            "load_module_only",
            "custom_load_fn",
            "rank_state",
        ],
        "save_16bit_model": ["save_dir", "save_filename", "exclude_frozen_parameters"],
        "_zero3_consolidated_16bit_state_dict": ["exclude_frozen_parameters"],
        "module_state_dict": ["destination", "prefix", "keep_vars", "exclude_frozen_parameters"],
        "compile": ["backend", "compile_kwargs", "schedule", "compiled_autograd_enabled"],
    }
    for name, params in expected.items():
        assert list(inspect.signature(getattr(DeepSpeedEngine, name)).parameters)[1:] == params, name
    params = list(inspect.signature(initialize).parameters)
    assert params[:4] == ["args", "model", "optimizer", "model_parameters"] and params[-1] == "config_params"


def getters(stage):
    engine = make(stage, accumulation=2)
    assert isinstance(engine, torch.nn.Module) and isinstance(engine, DeepSpeedEngine)
    assert engine.config.get("zero_optimization")["stage"] == stage
    assert engine.loss_scale() == 1.0 and not engine.dynamic_loss_scale()
    assert engine.optimizer.cur_scale == 1.0 and engine.optimizer.overflow is False
    assert engine.get_global_grad_norm() is None and not engine.was_step_applied()
    assert engine.get_batch_info() == (4 * world.size(), 2, 2)
    assert engine.world_size == engine.dp_world_size == world.size()
    assert engine.global_rank == engine.local_rank == engine.get_data_parallel_rank() == world.rank()
    assert torch.distributed.get_world_size(engine.data_parallel_group) == world.size()
    assert engine.zero_optimization_partition_weights() is (stage == 3)
    assert engine.zero_optimization_partition_gradients() is (stage >= 2)
    assert (engine.optimizer_name(), engine.optimizer_params()["lr"]) == ("adamw", 1e-2)
    assert engine.get_lr() == [1e-2] and engine.get_mom() == [(0.9, 0.999)]
    assert not engine.fp16_enabled() and not engine.bfloat16_enabled() and engine.scheduler_name() is None
    assert engine.get_data_types() == (torch.float32, torch.float32)
    assert engine.device == torch.device("cpu") and engine.head is engine.module.head
    assert engine.offload_states() is None and engine.reload_states() is None
    said = [message_of(lambda: engine.offload_states(device="nvme"))]
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = engine.no_such_thing
    returned = engine.backward(loss := models.part_loss(engine, 0))
    assert returned.item() == loss.item() / 2
    assert engine.backward(models.part_loss(engine, 0), scale_wrt_gas=False).item() == loss.item()
    engine.step()
    assert engine.was_step_applied() is False and engine.get_global_grad_norm() is None
    engine.step()
    assert engine.was_step_applied() and engine.get_global_grad_norm() > 0
    engine.lr_scheduler = None
    engine.optimizer.zero_grad()
    engine.allreduce_gradients()
    return said


@pytest.mark.parametrize("ranks,stage", [(1, 0), (2, 2), (2, 3)])
def test_getters(ranks, stage):
    for said in world.run(ranks, getters, stage=stage):
        assert "'nvme'" in said[0]


def boundaries():
    """Accelerate's calls: boundaries before each backward, a step only there, the last window of an epoch shorter."""
    engine = make(2, accumulation=4, gradient_clipping=0.5)
    reference = models.stack()
    plain, norms = torch.optim.AdamW(reference.parameters(), lr=1e-2, eps=1e-3, weight_decay=0), []
    for window, micros in enumerate([4, 4, 2]):
        for micro in range(micros):
            engine.set_gradient_accumulation_boundary(micro + 1 == micros)
            engine.backward(models.part_loss(engine, window, micro) / micros, scale_wrt_gas=False)
            if micro + 1 == micros:
                engine.step()
            x, y = models.vectors(window, micro, 2 * world.size())
            (torch.nn.functional.mse_loss(reference(x), y) / micros).backward()
        norms.append(abs(torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5) - engine.get_global_grad_norm()))
        plain.step()
        plain.zero_grad()
    state = engine._zero3_consolidated_16bit_state_dict()
    same = state is None or all(torch.allclose(state[n], p, atol=1e-5) for n, p in reference.named_parameters())
    return max(norms).item() < 1e-4, same, engine.global_steps


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_boundaries_that_the_caller_sets_count(ranks):
    assert world.run(ranks, boundaries) == [[True, True, 3]] * ranks


def overflow():
    """A step whose gradients are not finite: skipped, told, and the schedule stands still."""
    engine = make(1, fp16={"enabled": True, "initial_scale_power": 4, "hysteresis": 1})
    scheduler = torch.optim.lr_scheduler.StepLR(engine.optimizer, 1, 0.5)
    engine.lr_scheduler = scheduler
    engine.backward(models.part_loss(engine, 0) * float("inf"))
    engine.step()
    skipped = [engine.was_step_applied(), engine.optimizer.overflow, engine.skipped_steps, engine.get_lr()]
    scale = engine.loss_scale()
    models.train(engine, [0])
    return skipped, scale, engine.was_step_applied(), engine.optimizer.overflow, engine.get_lr()


def test_steps_that_overflow_are_skipped():
    assert world.run(2, overflow) == [[[False, True, 1, [1e-2]], 8.0, True, False, [5e-3]]] * 2


# -- the model's weights -----------------------------------------------------------------------------------------------


def consolidated(stage, dtype):
    model = models.tiny_llama(tied=True)
    model.register_buffer("steps", torch.tensor([3]))
    for param in model.model.layers[0].parameters():
        param.requires_grad_(False)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    engine = make(stage, model=model, dtype=dtype)
    state = engine._zero3_consolidated_16bit_state_dict()
    trained = engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=True)
    if world.rank() != 0:
        return state is None and trained is None
    assert list(state) == list(expected)
    for name, value in expected.items():
        want = value.to(state[name].dtype)
        assert state[name].dtype == (value.dtype if dtype == "fp32" or name == "steps" else torch.bfloat16), name
        assert torch.equal(state[name], want) and state[name].device.type == "cpu", name
    assert state["lm_head.weight"] is state["model.embed_tokens.weight"]
    assert trained.keys() == {name for name in expected if "layers.0." not in name}
    with zeroshard.gathered(model.parameters()) if world.size() == 1 else torch.no_grad():
        frozen_out = engine.module_state_dict(exclude_frozen_parameters=True, prefix="x.")
    assert frozen_out.keys() == {"x." + name for name in trained}
    return True


@pytest.mark.parametrize("ranks,stage,dtype", [(1, 3, "fp32"), (2, 0, "fp32"), (3, 3, "bf16")])
def test_consolidated_state_dict(ranks, stage, dtype):
    assert world.run(ranks, consolidated, stage=stage, dtype=dtype) == [True] * ranks


def failing():
    engine = make(3)
    said = []
    if world.rank() == 0:
        real = torch.Tensor.to

        def refuse(self, *args, **kwargs):
            if kwargs.get("copy"):
                raise ValueError("no memory for a copy")
            return real(self, *args, **kwargs)

        torch.Tensor.to = refuse
    try:
        engine._zero3_consolidated_16bit_state_dict()
    except Exception as error:  # noqa: BLE001
        said = [isinstance(error, ValueError), str(error)]
    if world.rank() == 0:
        torch.Tensor.to = real
    models.train(engine, [0])  # goes on
    return said


def test_consolidation_that_fails_on_rank_0_fails_on_all_and_is_no_value_error():
    for is_value_error, text in world.run(2, failing):
        assert not is_value_error and "no memory for a copy" in text


def sixteen_bit(folder, gather):
    engine = make(3, zero_optimization={"stage3_gather_16bit_weights_on_model_save": gather})
    wrote = [engine.save_16bit_model(folder), engine.save_fp16_model(folder, "other.bin")]
    engine.wait_for_checkpoint()
    return wrote


@pytest.mark.parametrize("gather", [True, False])
def test_16bit_model(tmp_path, gather):
    assert world.run(2, sixteen_bit, folder=str(tmp_path), gather=gather) == [[gather, gather]] * 2
    assert sorted(os.listdir(tmp_path)) == (["model.safetensors", "other.safetensors"] if gather else [])


# -- checkpoints -------------------------------------------------------------------------------------------------------


def save_and_look(folder, background):
    blocks = {"zeroshard": {"checkpoint": {"async": True}}} if background else {}
    engine = make(3, **blocks)
    models.train(engine, [0])
    assert engine.save_checkpoint(folder, client_state={"epoch": 3}) is True
    there = os.path.exists(os.path.join(folder, "global_step1", "manifest.json"))
    engine.wait_for_checkpoint()
    models.train(engine, [1])
    digest = engine.parameter_digest()
    other = make(3)
    path, client = other.load_checkpoint(folder)
    models.train(other, [1])
    none = other.load_checkpoint(os.path.join(folder, "nothing"))
    return there, os.path.basename(path), client, digest == other.parameter_digest(), none


def test_a_checkpoint_is_there_when_save_checkpoint_returns(tmp_path):
    expected = [True, "global_step1", {"epoch": 3}, True, [None, None]]
    assert world.run(2, save_and_look, folder=str(tmp_path), background=False) == [expected] * 2


# -- engines one after another and side by side ------------------------------------------------------------------------


def evaluate_then_train(stage, wrapped):
    """A module is evaluated, trained, and trained again, as Trainer and TRL do; then it is its owner's."""
    model, reference = models.stack(), models.stack()
    config = models.configuration(stage)
    first, optimizer, *_ = initialize(model=model, config=config)
    assert (optimizer is None) == (stage != 3) and first.optimizer is optimizer
    with torch.no_grad():
        before = models.part_loss(first.eval(), 0).item()
    assert "has no optimizer" in message_of(lambda: models.train(first, [0]))
    inner = torch.nn.Sequential(model) if wrapped else model
    second = make(stage, model=inner)
    refused = message_of(lambda: first(torch.ones(1, 10)))
    first.destroy()  # of an engine whose module belongs to another: nothing happens
    second.train()
    models.train(second, [0])
    second.destroy()
    second.destroy()
    third, *_ = initialize(model=model, config=config | {"optimizer": models.adamw(eps=1e-3)})
    models.train(third, [1])
    third.destroy()
    plain = torch.optim.AdamW(reference.parameters(), lr=1e-2, eps=1e-3, weight_decay=0)
    expected = None
    for step in range(2):
        plain = torch.optim.AdamW(
            reference.parameters(), lr=1e-2, eps=1e-3, weight_decay=0
        )  # each engine had an optimizer of its own
        x, y = models.vectors(step, 0, 2 * world.size())
        loss = torch.nn.functional.mse_loss(reference(x), y)
        expected = expected if expected is not None else loss.item()
        loss.backward()
        plain.step()
        plain.zero_grad()
    same = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(model.parameters(), reference.parameters(), strict=True))
    losses = [None] * world.size()
    torch.distributed.all_gather_object(losses, before)
    plain_module = model(torch.ones(1, 10)).requires_grad
    return same, abs(sum(losses) / len(losses) - expected) < 1e-5, refused, plain_module


@pytest.mark.parametrize("ranks,stage", [(1, 3), (2, 0), (2, 3)])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_module_is_initialized_again(ranks, stage, wrapped):
    for same, equal, refused, whole in world.run(ranks, evaluate_then_train, stage=stage, wrapped=wrapped):
        assert same and equal and whole
        assert "belongs to another engine now" in refused


def side_by_side():
    """Two that train and a reference that evaluates, as in TRL: each as if it were alone."""
    digests = []
    for together in (True, False):
        first, second = make(3), make(2, model=models.stack(seed=1))
        reference = initialize(model=models.stack(), config=models.configuration(3 if together else 0))[0].eval()
        if together:
            for step in range(2):
                with torch.no_grad():
                    kept = models.part_loss(reference, 0).item()
                models.train(first, [step])
                models.train(second, [step])
        else:
            models.train(first, range(2))
            models.train(second, range(2))
            with torch.no_grad():
                kept = models.part_loss(reference, 0).item()
        digests.append([first.parameter_digest(), second.parameter_digest(), round(kept, 5)])
        reference.destroy()
        models.train(first, [0])
        first.destroy()
        models.train(second, [0])
        second.destroy()
    return digests


def test_engines_side_by_side():
    for one, other in world.run(2, side_by_side):
        assert one == other


def generate(stage):
    model = models.tiny_llama(use_cache=True).eval()
    ids = models.tokens(0, 0, 2, length=5)
    expected = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    engine = initialize(model=model, config=models.configuration(stage))[0].eval()
    with torch.no_grad():
        same = torch.equal(engine.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0), expected)
    state = engine._zero3_consolidated_16bit_state_dict()
    assert engine.save_checkpoint is not None and (state is None or len(state) == len(model.state_dict()))
    return same, message_of(lambda: engine.backward(torch.zeros(1, requires_grad=True).sum()))


@pytest.mark.parametrize("ranks,stage", [(1, 3), (2, 0), (2, 3)])
def test_engines_without_an_optimizer_evaluate_and_generate(ranks, stage):
    for same, said in world.run(ranks, generate, stage=stage):
        assert same and "has no optimizer" in said


def generate_without_waiting(budget):
    """Ranks generate different numbers of tokens, and none takes part in another's."""
    model = models.tiny_llama(use_cache=True).eval()
    config = models.configuration(3)
    config["zero_optimization"]["stage3_max_live_parameters"] = budget
    engine = initialize(model=model, config=config)[0].eval()
    ids = models.tokens(0, 0, 2, length=5)
    sizes = []
    for extra in (0, 3):  # twice
        length = 4 + extra * dist.get_rank()
        out = model.generate(ids, max_new_tokens=length, do_sample=False, pad_token_id=0, synced_gpus=False)
        sizes.append(out.shape[1] - 5 - length)
        with pytest.raises(RuntimeError, match="is sharded"):
            model.lm_head.weight.sum()
    engine(ids)
    return sizes


def test_ranks_generate_different_numbers_of_tokens():
    assert world.run(3, generate_without_waiting, budget=10**9) == [[0, 0]] * 3


def test_generation_above_its_budget_gathers_for_every_token():
    with pytest.raises(AssertionError, match="rank 0 called .*|rank 1"):
        world.run(2, generate_without_waiting, budget=1000)


def destroyed():
    engine = make(3)
    optimizer, train_loss = engine.optimizer, models.part_loss(engine, 0)
    engine.backward(train_loss)
    engine.destroy()
    engine.destroy()
    calls = {
        "forward": lambda: engine(torch.ones(1, 10)),
        "backward": lambda: engine.backward(torch.zeros(1, requires_grad=True).sum()),
        "step": engine.step,
        "save": lambda: engine.save_checkpoint("/nowhere"),
        "state": engine._zero3_consolidated_16bit_state_dict,
        "part": optimizer.state_dict,
        "scale": engine.loss_scale,
    }
    return {name: message_of(call) for name, call in calls.items()}, engine.global_steps


def test_a_destroyed_engine_says_so():
    for said, steps in world.run(2, destroyed):
        assert steps == 0 and "make a new Trainer of the same model" in said["forward"]
        for name, text in said.items():
            assert text is not None and text.startswith("StateError") and "engine" in text, (name, text)


def wrong_calls():
    model = models.stack()
    config = models.configuration(1)
    return [
        message_of(lambda: initialize(config=config)),
        message_of(lambda: initialize(model=model)),
        message_of(lambda: initialize(model=model, config=config, mpu=object())),
        message_of(lambda: initialize(model=model, config=config, optimizer=3)),
        message_of(lambda: initialize(args=None, model=model, config=json.dumps({"zero_optimization": {"stage": 7}}))),
    ]


def test_wrong_calls_of_initialize():
    model, config, mpu, optimizer, stage = world.run(1, wrong_calls)[0]
    assert "model is missing" in model and "config is missing" in config and "mpu" in mpu
    assert "optimizer is an int" in optimizer and "stage" in stage


def hooks_of_trl():
    """TRL takes hooks off around a generation inside a gather, and registers them again."""
    from trl.models.utils import add_hooks, remove_hooks

    engine = make(3, model=models.tiny_llama())
    with zeroshard.gathered(engine.module.parameters()):
        remove_hooks(engine)
        length = 3 + 2 * world.rank()  # ranks stop at different lengths
        out = engine.module.generate(models.tokens(0, 0, 1, 4), max_new_tokens=length, min_new_tokens=length)
        add_hooks(engine)
    ids = models.tokens(0, 0, 2)
    engine.backward(models.language_loss(engine, ids))
    engine.step()
    return out.shape[1], engine.was_step_applied()


def test_hooks_that_trl_takes_off():
    assert world.run(2, hooks_of_trl) == [[7, True], [9, True]]
