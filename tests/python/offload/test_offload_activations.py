"""Inputs of checkpointed layers in files: the same bits as in memory, in less memory."""

import contextlib
import copy
import gc
import json
import os
import subprocess
import threading

import models
import pytest
import torch
import transformers
import world
import zeroshard
from built import TESTS, ZEROSHARD, needs
from deepspeed_scripts import run
from torch import nn
from torch.utils.checkpoint import checkpoint
from zeroshard import _C, activations

LENGTH = 64  # tokens, so that the inputs of layers are large enough to leave


def configuration(stage, path=None, **blocks):
    config = models.configuration(stage, optimizer=models.adamw(), **blocks)
    if path is not None:
        config["zeroshard"]["offload"] = {"activations": "nvme"}
        config["zero_optimization"]["offload_optimizer"] = {"device": "none", "nvme_path": path}
    return config


@contextlib.contextmanager
def counted():
    """How many tensors left memory."""
    kept, pack = [], activations.Keeper.pack

    def count(keeper, tensor):
        packed = pack(keeper, tensor)
        kept.append(isinstance(packed, _C.KeptTensor))
        return packed

    activations.Keeper.pack = count
    try:
        yield lambda: sum(kept)
    finally:
        activations.Keeper.pack = pack


def file_sizes(folder):
    """Of this process' files without a name."""
    sizes = []
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(str(folder)):
                sizes.append(os.path.getsize(path))
    return sizes


# -- models of transformers --------------------------------------------------------------------------------------------


def train_language_model(make, stage, path, reentrant, late, steps=3, **blocks):
    model = make()

    def enable():
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        model.enable_input_require_grads()

    if not late:
        enable()
    engine, *_ = zeroshard.initialize(model=model, config=configuration(stage, path, **blocks))
    if late:
        enable()
    losses = []
    with counted() as kept:
        for step in range(steps):
            for micro in range(engine.gradient_accumulation_steps()):
                ids = models.tokens(step, micro, 2 * world.size(), LENGTH)
                loss = models.language_loss(engine, models.share(ids, world.rank(), world.size()))
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
        count = kept()
    return losses, engine.parameter_digest(), count


def compare(folder, stage):
    for make in (
        lambda: models.tiny_llama(max_position_embeddings=LENGTH),
        lambda: models.tiny_gpt2(n_positions=LENGTH),
    ):
        for reentrant in (False, True):
            plain = train_language_model(make, stage, None, reentrant, late=False)
            kept = train_language_model(make, stage, [f"{folder}/one", f"{folder}/other"], reentrant, late=reentrant)
            assert plain[:2] == kept[:2]
            assert (plain[2], kept[2]) == (0, 3 * 2)  # of each step each layer's
    # With micro-batches in bf16, and optimizer states in the same directory.
    blocks = {"bf16": {"enabled": True}, "accumulation": 2}
    make = lambda: models.tiny_llama(max_position_embeddings=LENGTH)  # noqa: E731
    plain = train_language_model(make, stage, None, False, False, **blocks)
    kept = train_language_model(make, stage, f"{folder}/one", False, False, **blocks)
    assert plain[:2] == kept[:2] and kept[2] == 3 * 2 * 2
    return kept[1]


@pytest.mark.parametrize("ranks,stage", [(1, 0), (1, 3), (2, 1), (2, 2), (3, 3), (3, 0)])
def test_results_are_those_of_memory(tmp_path, ranks, stage):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    assert len(set(world.run(ranks, compare, folder=str(tmp_path), stage=stage))) == 1
    assert not os.listdir(tmp_path / "one")


def frozen_base(folder):
    """The input of the first layer is a leaf."""
    found = []
    for path in (None, folder):
        for leaf in (False, True):
            model = models.lora_llama()
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            if leaf:
                model.enable_input_require_grads()
            engine, *_ = zeroshard.initialize(model=model, config=configuration(3, path))
            with counted() as kept:
                loss = models.language_loss(engine, models.tokens(0, world.rank(), 2, 32)[:, :32])
                engine.backward(loss)
                engine.step()
                found.append((loss.item(), engine.parameter_digest(), kept()))
    return found


def test_a_frozen_base_is_trained_the_same_way(tmp_path):
    for plain, plain_leaf, kept, kept_leaf in world.run(2, frozen_base, folder=str(tmp_path)):
        assert plain[:2] == kept[:2] and plain_leaf[:2] == kept_leaf[:2]
        assert (kept[2], kept_leaf[2]) == (2, 2)


TRAINER = """
import torch, transformers, models
from transformers import Trainer, TrainingArguments
import zeroshard
from zeroshard import _C, activations

folder, stage, where, use = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
kept, pack = [], activations.Keeper.pack
def count(keeper, tensor):
    packed = pack(keeper, tensor)
    kept.append(isinstance(packed, _C.KeptTensor))
    return packed
activations.Keeper.pack = count
zero = {"stage": stage, "stage3_param_persistence_threshold": 0, "offload_optimizer": {"nvme_path": folder + "/swap"}}
config = {name: "auto" for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")}
config |= {"zero_optimization": zero, "zeroshard": {"offload": {"activations": where}}}
generator = torch.Generator().manual_seed(0)
data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 61, (40, 64), generator=generator)]
arguments = TrainingArguments(
    output_dir=folder + "/out", deepspeed=config, per_device_train_batch_size=2, max_steps=3, logging_steps=1,
    learning_rate=1e-2, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, seed=1,
    gradient_accumulation_steps=2, gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": use == "reentrant"},
)
trainer = Trainer(model=models.tiny_llama(max_position_embeddings=64), args=arguments, train_dataset=data)
trainer.train()
steps = [[entry["loss"], entry["grad_norm"]] for entry in trainer.state.log_history if "loss" in entry]
digest = trainer.model_wrapped.parameter_digest()
tell(rank, where, sum(kept), steps if rank == 0 else None, digest)
"""


@needs(ZEROSHARD)
@pytest.mark.parametrize("stage,use", [(2, "plain"), (3, "plain"), (3, "reentrant")])
def test_the_key_alone_does_it_under_the_trainer(tmp_path, stage, use, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    (tmp_path / "swap").mkdir()
    script = tmp_path / "train.py"
    tell = 'def tell(*values):\n    print("\\nTOLD " + json.dumps(values), flush=True)\n'
    script.write_text("import json, os, sys\n" + tell + TRAINER)
    (plain, other), (kept, other_kept) = (
        run("--num_gpus", "2", str(script), str(tmp_path), str(stage), where, use) for where in ("none", "nvme")
    )
    assert plain[2] == 0 and kept[2] == 3 * 2 * 2  # steps, micro-batches, layers
    assert plain[3:] == kept[3:] and other[4] == other_kept[4] == kept[4]


# -- any module --------------------------------------------------------------------------------------------------------

WIDTH, ROWS = 32, 64


class Recomputed(models.Stack):
    """A stack whose blocks are computed again by `recompute`, with a block that is two of them."""

    def __init__(self, layers=4, nested=False, reentrant=False, width=WIDTH, recompute=zeroshard.recompute):
        super().__init__(width=width, layers=layers)
        self.nested, self.reentrant, self.recompute = nested, reentrant, recompute

    def forward(self, x):
        part = self.pair if self.nested else None
        blocks = list(self.blocks)
        while blocks:
            if part is None:
                x = self.recompute(blocks.pop(0), x, use_reentrant=self.reentrant)
            else:
                x = self.recompute(part, blocks.pop(0), blocks.pop(0), x, use_reentrant=self.reentrant)
        return self.head(x)

    def pair(self, first, second, x):
        x = self.recompute(first, x, use_reentrant=self.reentrant)
        return self.recompute(second, x, use_reentrant=self.reentrant)


def make_recomputed_engine(path, stage=3, **options):
    torch.manual_seed(0)
    return zeroshard.initialize(model=Recomputed(**options), config=configuration(stage, path))[0]


def loss_of_micro_batch(engine, step=0, micro=0):
    x, y = models.vectors(step, micro, ROWS * world.size(), WIDTH)
    x, y = (models.share(each, world.rank(), world.size()) for each in (x, y))
    # The input needs a gradient, as reentrant checkpoints want it.
    return torch.nn.functional.mse_loss(engine(x.requires_grad_(True)), y)


def gradients(engine):
    found = [zeroshard.get_gradient(param) for param in engine.module.parameters()]
    return [each.tolist() for each in found]


def mischief(folder):
    plain, engine = make_recomputed_engine(None, recompute=checkpoint), make_recomputed_engine(folder)
    for each in (plain, engine):  # the space that a pass needs
        each.backward(loss_of_micro_batch(each))
        each.step()
    (size,) = file_sizes(folder)
    assert size > 0

    # A forward whose loss is dropped, one in evaluation, one that fails, and one without gradients.
    for _ in range(20):
        loss_of_micro_batch(engine)
    engine.eval()
    with torch.no_grad():
        loss_of_micro_batch(engine)
    engine.train()

    def fail(*_):
        raise ArithmeticError("stop")

    if world.size() == 1:
        handle = engine.module.head.register_forward_pre_hook(fail)
        for _ in range(20):
            with pytest.raises(ArithmeticError):
                loss_of_micro_batch(engine)
        handle.remove()
    gc.collect()

    # Twice through one graph, and a third time when it has ended.
    for each in (plain, engine):
        loss = loss_of_micro_batch(each, 1)
        each.backward(loss, retain_graph=True)
        each.backward(loss)
        if world.size() == 1:
            with pytest.raises(RuntimeError, match="second time|was already"):
                each.backward(loss)
        else:
            each.step()
        each.zero_grad()
    assert plain.parameter_digest() == engine.parameter_digest()

    # Backward in another thread, which then ends.
    for each in (plain, engine):
        loss = loss_of_micro_batch(each, 2)
        thread = threading.Thread(target=each.backward, args=(loss,))
        thread.start()
        thread.join()
        each.step()
    assert plain.parameter_digest() == engine.parameter_digest()
    assert file_sizes(folder) == [size]
    return engine.parameter_digest()


@pytest.mark.parametrize("ranks", [1, 2])
def test_graphs_that_end_in_other_ways_than_by_a_backward(tmp_path, ranks):
    assert len(set(world.run(ranks, mischief, folder=str(tmp_path)))) == 1


def several_at_once(folder):
    """Micro-batches whose forwards all come before their backwards, the first of which is that of the first or last."""
    digests = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        engines = [make_recomputed_engine(None, 2, recompute=checkpoint), make_recomputed_engine(folder, 2)]
        for engine in engines:
            for step in range(2):
                losses = [loss_of_micro_batch(engine, step, micro) for micro in range(3)]
                for each in order:
                    engine.backward(losses[each])
                engine.step()
        digests.append({engine.parameter_digest() for engine in engines})
    return [len(each) for each in digests]


def test_several_micro_batches_may_be_under_way(tmp_path):
    assert world.run(2, several_at_once, folder=str(tmp_path)) == [[1, 1, 1]] * 2


def nested(folder):
    for reentrant in (False, True):
        plain, engine = (
            make_recomputed_engine(path, nested=True, reentrant=reentrant, recompute=call)
            for path, call in ((None, checkpoint), (folder, zeroshard.recompute))
        )
        with counted() as kept:
            for each in (plain, engine):
                for step in range(2):
                    each.backward(loss_of_micro_batch(each, step))
                    each.step()
            assert kept() == 2 * 2  # of each step those of the outer parts
        assert plain.parameter_digest() == engine.parameter_digest()
    return engine.parameter_digest()


def test_parts_within_parts_keep_what_the_outer_ones_need(tmp_path):
    assert len(set(world.run(2, nested, folder=str(tmp_path)))) == 1


class Shaped(nn.Module):
    """Inputs of many kinds: those with gaps stay, others come back as they lay."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.seen = []

    def forward(self, x):
        wide = torch.cat([x, x], 1) * self.weight.repeat(2)
        memory = x * 2  # given to both
        total = 0.0
        for given in (wide[:, :WIDTH], wide.t(), x * self.weight, wide[:1].expand(64, -1), self.weight, wide[1:]):
            total = total + zeroshard.recompute(self.part, given, memory, x.detach(), use_reentrant=False)
        return total

    def part(self, given, memory, without_gradient):
        self.seen.append((given.stride(), given.tolist()))
        return (given.sin() * self.weight.sum() * memory.mean()).sum()


class ChangedInPlace(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.first, self.second, self.use_reentrant = nn.Linear(32, 32), nn.Linear(32, 32), use_reentrant

    def forward(self, x, mask):
        def part(hidden, mask):
            return torch.tanh(self.second(hidden * mask))

        out = zeroshard.recompute(part, self.first(x), mask, use_reentrant=self.use_reentrant)
        mask.mul_(0.5)
        return out.sum()


def change_an_argument(folder):
    for use_reentrant in (False, True):
        engine, *_ = zeroshard.initialize(model=ChangedInPlace(use_reentrant), config=configuration(0, folder))
        loss = engine(torch.randn(512, 32), torch.ones(512, 32))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            engine.backward(loss)
        engine.destroy()


def test_arguments_that_were_changed_are_found_as_by_torch(tmp_path):
    world.run(1, change_an_argument, folder=str(tmp_path))


class Freed(nn.Module):
    """Frees the input of a part, as keeping it allows; the next one may come to the same place."""

    def __init__(self, frees):
        super().__init__()
        self.first, self.a, self.b, self.frees = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32), frees

    def forward(self, x):
        hidden = self.first(x)
        out = zeroshard.recompute(lambda h: torch.tanh(self.a(h)).sum(), hidden, use_reentrant=False)
        tripled = x * 3
        if self.frees:
            hidden.untyped_storage().resize_(0)
        other = self.first(tripled)
        return out + zeroshard.recompute(lambda h: torch.tanh(self.b(h)).sum(), other, use_reentrant=False)


def free_inputs(folder):
    found = []
    for path, frees in ((None, False), (folder, False), (folder, True)):
        torch.manual_seed(0)
        engine, *_ = zeroshard.initialize(model=Freed(frees), config=configuration(0, path))
        engine.backward(engine(torch.ones(4096, 32)))
        found.append([zeroshard.get_gradient(p).tolist() for p in engine.module.parameters()])
        engine.destroy()
    assert found[0] == found[1] == found[2]


def test_a_tensor_at_the_place_of_a_freed_one_is_another(tmp_path):
    world.run(1, free_inputs, folder=str(tmp_path))


def fork_between(folder):
    engine = make_recomputed_engine(folder)
    loss = loss_of_micro_batch(engine)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            loss.backward()
        except Exception as error:  # torch's own engine may refuse it first
            print(type(error), error, flush=True)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    engine.backward(loss)
    engine.step()


def test_a_forked_child_leaves_the_files_to_its_parent(tmp_path):
    world.run(1, fork_between, folder=str(tmp_path))


def inputs_of_many_kinds(folder):
    engine = zeroshard.initialize(model=Shaped(), config=configuration(1, folder))[0]
    with counted() as kept:
        loss = engine(torch.linspace(-1, 1, 64 * WIDTH).view(64, WIDTH).requires_grad_(True))
        count, size = kept(), file_sizes(folder)
        engine.backward(loss)
    seen = engine.module.seen
    assert [stride for stride, _ in seen[6:]] == [stride for stride, _ in reversed(seen[:6])]
    assert seen[6:] == list(reversed(seen[:6]))
    engine.step()
    # Two whole ones, a part that begins on a line of the cache, and six times the same one, which lies there once.
    return count, size


def test_inputs_come_back_as_they_lay_and_are_kept_once(tmp_path):
    ((count, size),) = world.run(1, inputs_of_many_kinds, folder=str(tmp_path))
    assert count == 3 + 6
    whole = 64 * WIDTH * 4
    assert size == [2 * whole + whole + 63 * 2 * WIDTH * 4 // 4096 * 4096 + 4096 + whole]


def many_steps(folder):
    engine = make_recomputed_engine(folder, 2)
    sizes = set()
    for step in range(150):
        engine.backward(loss_of_micro_batch(engine, step))
        engine.step()
        sizes.add(tuple(file_sizes(folder)))
    return [list(each) for each in sizes]


def test_the_file_does_not_grow_over_hundreds_of_steps(tmp_path):
    for sizes in world.run(2, many_steps, folder=str(tmp_path), timeout_s=300):
        assert sizes == [[4 * ROWS * WIDTH * 4]]  # the inputs of four blocks


def model_without_its_engine(folder):
    """A model whose engine is gone checkpoints as before; so does a copy; another engine takes the place."""
    model = models.tiny_llama(max_position_embeddings=LENGTH)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    own = model.model.layers[0]._gradient_checkpointing_func
    counts = []

    def train(engine):
        with counted() as kept:
            loss = models.language_loss(engine, models.tokens(0, 0, 2, LENGTH))
            engine.backward(loss) if isinstance(engine, zeroshard.Engine) else loss.backward()
            counts.append(kept())

    engine = zeroshard.initialize(model=model, config=configuration(0, folder))[0]
    train(engine)
    engine.step()
    copied = copy.deepcopy(model)
    assert type(copied.model.layers[0]._gradient_checkpointing_func) is type(own)
    other = zeroshard.initialize(model=model, config=configuration(0, folder))[0]
    train(other)
    other.step()
    other.destroy()
    assert model.model.layers[0]._gradient_checkpointing_func is own
    train(model.train())
    third = zeroshard.initialize(model=model, config=configuration(0, folder))[0]
    train(third)
    third.step()
    # A graph whose engine is gone.
    loss = models.language_loss(third, models.tokens(0, 0, 2, LENGTH))
    third.destroy()
    del third
    gc.collect()
    del loss
    return counts


def test_a_model_may_outlive_its_engine(tmp_path):
    assert world.run(1, model_without_its_engine, folder=str(tmp_path)) == [[2, 2, 0, 2]]


# -- memory ------------------------------------------------------------------------------------------------------------

LAYERS, LONG = 16, 1 << 14  # an input of 4 MiB for each layer


def peak(folder, path):
    engine = make_recomputed_engine(path, 1, layers=LAYERS, width=64)
    x = torch.randn(LONG, 64, requires_grad=True)
    engine.backward(engine(x[:64]).square().mean())  # makes what stays
    engine.step()
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = status("VmRSS")
    for _ in range(2):
        engine.backward(engine(x).square().mean())
        engine.step()
    growth = status("VmHWM") - before
    report = engine.memory_report()
    assert report["planned"] == report["measured_peak"]
    staging = {name: sizes for name, sizes in report["planned"].items() if name == "swap"}
    return growth, staging, sum(file_sizes(folder))


def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))


def test_the_peak_of_a_step_is_smaller_by_the_inputs_of_layers(tmp_path):
    ((plain, none, _),) = world.run(1, peak, folder=str(tmp_path), path=None, timeout_s=300)
    ((kept, staging, file),) = world.run(1, peak, folder=str(tmp_path), path=str(tmp_path), timeout_s=300)
    inputs = LAYERS * LONG * 64 * 4
    assert file == inputs
    assert plain - kept > 0.6 * inputs, (plain, kept)
    assert none.get("swap", 0) == 0 and staging["swap"] == 8 << 20


# -- the plan ----------------------------------------------------------------------------------------------------------


@needs(ZEROSHARD)
def test_the_plan_counts_inputs_of_layers_in_files(tmp_path):
    sizes = {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 6}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    transformers.LlamaConfig(**sizes).save_pretrained(tmp_path)

    def plan(where, *options, as_json=True):
        config = tmp_path / f"{where}.json"
        offload = {"offload_optimizer": {"nvme_path": str(tmp_path)}, "stage": 2}
        config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 2, "zero_optimization": offload,
                                      "zeroshard": {"offload": {"activations": where}}}))  # fmt: skip
        command = [str(ZEROSHARD), "plan", "--model", str(tmp_path), "--config", str(config), "--world-size", "2",
                   "--sequence-length", "1024", *options, *["--json"] * as_json]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return json.loads(done.stdout) if as_json else done.stdout

    recomputed = "--checkpoint-activations"
    one = 2 * 1024 * 64 * 4  # the input of a layer, in fp32
    plain, kept, host = plan("none", recomputed), plan("nvme", recomputed), plan("cpu", recomputed)
    assert plain["activations"]["layers_bytes"] == 6 * one and "file_bytes" not in plain["activations"]
    assert kept["activations"]["layers_bytes"] == 2 * one and kept["activations"]["file_bytes"] == 6 * one
    assert host["activations"]["layers_bytes"] == 2 * one and host["activations"]["host_bytes"] == 6 * one
    assert kept["breakdown"]["swap"] == 8 << 20
    assert "host_bytes" not in kept["activations"]
    beside = plan("nvme", recomputed, "--gpu")  # five of them lie on the host on their way
    assert beside["activations"]["file_bytes"] == 6 * one and beside["activations"]["host_bytes"] == 5 * one
    need = 5 * one + (8 << 20)
    fits, too_small = (
        plan("nvme", recomputed, "--gpu", "--device-memory=80GB", f"--host-memory={bytes}B")
        for bytes in (need, need - 1)
    )
    assert fits["limits"]["fits"]
    assert f"needs {need} bytes" in too_small["limits"]["problem"]
    assert "of the host's memory, activations included" in too_small["limits"]["problem"]
    assert kept["activations"]["total_bytes"] == plain["activations"]["total_bytes"] - 4 * one
    text = plan("nvme", recomputed, as_json=False)
    assert "file: activations" in text and "its input elsewhere" in text
    assert "give --checkpoint-activations" in " ".join(plan("nvme")["notes"])
