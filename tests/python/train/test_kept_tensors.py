"""Tensors that users make of parameters inside a gather, and keep: they have the values of the gather ever after."""

import copy
import io
import random
import threading

import models
import pytest
import simulated
import torch
import world
import zeroshard
from torch import nn

WIDTH = 48  # each block is sharded over up to 9 ranks


def block():
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))


def make_engine(stage=3, threshold=0, **own):
    torch.manual_seed(world.rank())
    model = nn.Sequential(*(block() for _ in range(5))).to(world.device())
    config = models.configuration(stage, threshold=threshold, optimizer=models.sgd(0.1))
    config["zeroshard"] |= {"shard_one_rank": True, "unit_classes": ["Sequential"], **own}
    return zeroshard.initialize(model=model, config=config)[0]


def take_one_step(engine):
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(world.rank())).to(world.device())
    engine.backward(engine(x).square().mean())
    engine.step()


def values_now(engine):
    with zeroshard.gathered(engine.module.parameters()):
        return {name: param.detach().cpu().clone() for name, param in engine.module.named_parameters()}


def saved(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


# Each gives the values of a tensor.
READS = {
    "print": lambda t: (str(t), t)[1],
    "clone": lambda t: t.clone(),
    "copy_": lambda t: torch.empty_like(t).copy_(t),
    "to": lambda t: t.to("cpu", copy=True),
    "add": lambda t: t + 0,
    "sum": lambda t: (t.sum(), t)[1],
    "norm": lambda t: (t.norm(), t)[1],
    "equal": lambda t: (torch.equal(t.cpu(), t.cpu()), t)[1],
    "matmul": lambda t: (t.view(t.shape[0], -1).t() @ t.view(t.shape[0], -1), t)[1],
    "tolist": lambda t: torch.tensor(t.tolist(), dtype=t.dtype),
    "index": lambda t: torch.stack([t[i] for i in range(len(t))]),
    "double": lambda t: t.double().to(t.dtype),
    "save": saved,
    "deepcopy": copy.deepcopy,
}
_NOT_SIMULATED = ("print", "save")  # the first makes the host wait, the second asks for torch's own devices
KEEPS = {
    "detach": lambda p: p.detach(),
    "data": lambda p: p.data,
    "cpu": lambda p: p.detach().cpu(),
    "view": lambda p: p.detach().view(-1).view(p.shape),
    "state_dict": lambda p: nn.ParameterDict({"p": p}).state_dict()["p"],
}


def kept_and_read(threshold):
    """What was wrong."""
    engine = make_engine(threshold=threshold)
    take_one_step(engine)
    expected = values_now(engine)
    params = dict(engine.module.named_parameters())
    with zeroshard.gathered(params.values()):
        kept = {(name, way): keep(param) for name, param in params.items() for way, keep in KEEPS.items()}
    reads = {how: read for how, read in READS.items() if world.device().type == "cpu" or how not in _NOT_SIMULATED}
    wrong = []

    def check(when):
        for (name, way), tensor in kept.items():
            for how, read in reads.items():
                if not torch.equal(read(tensor).cpu(), expected[name]):
                    wrong.append(f"{name} by {way}, read by {how} {when}")

    check("after the gather")
    take_one_step(engine)
    check("after a step")
    now = values_now(engine)
    assert not torch.equal(now["0.1.weight"], expected["0.1.weight"])
    with zeroshard.gathered(params.values()):
        check("in another gather")
    engine.destroy()
    check("after the engine")
    return wrong


@pytest.mark.parametrize(
    "ranks,threshold,on",
    [(1, 0, None), (2, 0, None), (3, 0, None), (3, 10**6, None), *[simulated.case(n, 0, "late") for n in (1, 2, 3)]],
)
def test_every_read_gives_the_values_of_the_gather(ranks, threshold, on):
    assert world.run(ranks, kept_and_read, on=on, threshold=threshold) == [[]] * ranks


def kept_where_parameters_are_whole(stage):
    engine = make_engine(stage)
    kept = {name: param.detach() for name, param in engine.module.named_parameters()}
    take_one_step(engine)
    now = values_now(engine)
    same = [all(torch.equal(kept[name].cpu(), now[name]) for name in now)]  # as in plain PyTorch
    engine.destroy()
    same.append(all(torch.equal(kept[name].cpu(), now[name]) for name in now))
    with torch.no_grad():
        engine.module[0][1].weight.add_(1)
    same.append(torch.equal(kept["0.1.weight"].cpu(), now["0.1.weight"] + 1))
    return same


@pytest.mark.parametrize("stage", [0, 2])
def test_where_parameters_are_whole_they_go_on_sharing_memory(stage):
    assert world.run(2, kept_where_parameters_are_whole, stage=stage) == [[True] * 3] * 2


def left_behind_by_a_forward():
    """The reads of what a forward has left behind that went through."""
    engine = make_engine()
    kept = {}

    def hook(module, args, output):
        kept[module] = module.weight.detach()

    names = {module: name for name, module in engine.module.named_modules() if isinstance(module, nn.Linear)}
    handles = [module.register_forward_hook(hook) for module in names]
    take_one_step(engine)
    for handle in handles:
        handle.remove()
    through = []
    for module, tensor in kept.items():
        for how, read in READS.items():
            try:
                read(tensor)
                through.append(f"{names[module]} by {how}")
            except RuntimeError as error:
                assert f"parameter '{names[module]}.weight' is sharded" in str(error) and "clone()" in str(error)
    take_one_step(engine)
    return through


def test_what_a_forward_leaves_behind_says_to_clone_it():
    assert world.run(2, left_behind_by_a_forward) == [[]] * 2


def destroyed_inside():
    """Which tensors have other values than the parameters after an engine that ended inside a gather."""
    engine = make_engine()
    model, left = engine.module, {}
    handles = [
        module.register_forward_hook(lambda module, *_, name=name: left.update({name: module.weight.detach()}))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    loss = engine(torch.ones(2, WIDTH)).sum()
    for handle in handles:
        handle.remove()
    with zeroshard.gathered(model.parameters()):
        kept = {name: param.detach() for name, param in model.named_parameters()}
        engine.destroy()
    loss.backward()
    now = dict(model.named_parameters())
    wrong = [name for name in kept if not torch.equal(kept[name], now[name])]
    return wrong + [name for name, tensor in left.items() if not torch.equal(tensor, now[f"{name}.weight"])]


def test_an_engine_may_end_inside_a_gather():
    assert world.run(2, destroyed_inside) == [[], []]


def peak_of_gathers(keeps, threshold):
    engine = make_engine(threshold=threshold)
    take_one_step(engine)
    kept = []
    for _ in range(3):
        for params in (engine.module[0].parameters(), engine.module.parameters()):
            params = list(params)
            with zeroshard.gathered(params):
                kept += [param.detach() for param in params if keeps]
        take_one_step(engine)
    return engine.memory_report()["measured_peak"]


@pytest.mark.parametrize("threshold", [0, 10**6])
def test_kept_tensors_take_no_memory_of_the_engine(threshold):
    with_kept, without = (world.run(2, peak_of_gathers, keeps=keeps, threshold=threshold) for keeps in (True, False))
    assert with_kept == without


def graphs_and_gathers(where):
    """The digest of training in which a step gathers around its forward, or between forward and backward."""
    engine = make_engine(threshold=60 if where == "small" else 0)
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(world.rank()))
    kept = []
    for _ in range(3):
        if where == "around":
            with zeroshard.gathered(engine.module.parameters()):
                loss = engine(x).square().mean()
        else:
            loss = engine(x).square().mean()
        if where in ("between", "small"):
            with zeroshard.gathered(engine.module.parameters()):
                kept += [param.detach() for param in engine.module.parameters()]
        engine.backward(loss)
        engine.step()
    return engine.parameter_digest()


def test_graphs_are_right_whatever_is_gathered_and_kept_beside_them():
    plain = world.run(2, graphs_and_gathers, where="nowhere")
    for where in ("around", "between", "small"):
        assert world.run(2, graphs_and_gathers, where=where) == plain


def kept_while_others_go(how):
    """What was kept of a gather in which older views of the same parameters die; what differs later."""
    engine = make_engine()
    take_one_step(engine)
    expected = values_now(engine)
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(world.rank()))
    loss = sum(engine(x).square().mean() for _ in range(3))
    with zeroshard.gathered(engine.module.parameters()):
        kept = {name: param.detach() for name, param in engine.module.named_parameters()}
        if how == "backward":
            engine.backward(loss)
        del loss
    if how == "written":
        expected = {name: tensor.mul_(0.5).clone() for name, tensor in kept.items()}
    wrong = []
    for _ in range(2):
        wrong += [name for name in kept if not torch.equal(kept[name], expected[name])]
        take_one_step(engine)
        with zeroshard.gathered(engine.module.parameters()):
            wrong += [name for name in kept if not torch.equal(kept[name], expected[name])]
    return wrong, engine.parameter_digest()


def test_what_is_kept_is_independent_of_what_else_there_was():
    forgotten, backward, written = (
        world.run(2, kept_while_others_go, how=how) for how in ("forgotten", "backward", "written")
    )
    assert forgotten == written
    assert all(wrong == [] for wrong, _ in forgotten + backward)


def random_keeps(seed):
    """What differs from the values at the end of the outermost gather."""
    engine = make_engine(threshold=random.Random(seed).choice([0, 60, 10**6]))
    draw = random.Random(seed)  # the same on every rank
    names = [name for name, _ in engine.module.named_parameters()]
    params = dict(engine.module.named_parameters())
    kept, wrong = [], []  # kept: a tensor, and its values

    def keep(name):
        parts = [lambda t: t, lambda t: t.t() if t.dim() == 2 else t, lambda t: t[1:3], lambda t: t[..., ::2]]
        return name, draw.choice(parts)

    def gather(depth):
        chosen = draw.sample(names, draw.randint(1, len(names)))
        modify = draw.choice([None, None, 0]) if depth == 0 else None
        with zeroshard.gathered([params[name] for name in chosen], modify_rank=modify):
            if modify is not None and world.rank() == 0:
                with torch.no_grad():
                    params[chosen[0]].mul_(1.5)
            own = [keep(draw.choice(chosen)) for _ in range(draw.randint(0, 6))]
            tensors = [(name, part, part(params[name].detach())) for name, part in own]
            if depth < 2 and draw.random() < 0.5 and modify is None:
                gather(depth + 1)
        if depth == 0 and draw.random() < 0.3:
            tensors = tensors[::2]
        if depth == 0:
            now = values_now(engine)
            kept.extend((tensor, part(now[name])) for name, part, tensor in tensors)

    for _ in range(12):
        draw.choice([lambda: gather(0), lambda: gather(0), lambda: take_one_step(engine)])()
        wrong += [str(tensor.shape) for tensor, values in kept if not torch.equal(tensor.cpu(), values)]
        if len(kept) > 12 and draw.random() < 0.5:
            del kept[: len(kept) // 2]
    engine.destroy()
    return wrong + [str(tensor.shape) for tensor, values in kept if not torch.equal(tensor.cpu(), values)]


@pytest.mark.parametrize("seed", range(8))
def test_random_keeps(seed):
    ranks = 1 + seed % 3
    assert world.run(ranks, random_keeps, seed=seed) == [[]] * ranks


def read_by_threads():
    """A thread reads what was kept while the gather ends and training goes on."""
    engine = make_engine()
    take_one_step(engine)
    expected = values_now(engine)
    wrong, threads, end = [], [], threading.Event()

    def read(kept):
        rounds = 0
        while not end.is_set() or rounds < 3:
            wrong.extend(name for name, tensor in kept.items() if not torch.equal(tensor, expected[name]))
            rounds += 1

    with zeroshard.gathered(engine.module.parameters()):
        for _ in range(2):
            kept = {name: param.detach() for name, param in engine.module.named_parameters()}
            threads.append(threading.Thread(target=read, args=[kept]))
            threads[-1].start()
    for _ in range(4):
        take_one_step(engine)
    end.set()
    for thread in threads:
        thread.join()
    return wrong


def test_threads_may_go_on_reading():
    assert world.run(2, read_by_threads) == [[]] * 2


class Gathering(nn.Linear):
    """Gathers its own weight in forward, and in backward."""

    def forward(self, x):
        with zeroshard.gathered([self.weight]):
            norm = self.weight.detach().norm()
        out = super().forward(x) / norm
        out.register_hook(self.look)
        return out

    def look(self, grad):
        with zeroshard.gathered([self.weight]):
            self.sum = self.weight.detach().sum()


def gathers_within(stage):
    torch.manual_seed(0)
    model = nn.Sequential(*(Gathering(WIDTH, WIDTH) for _ in range(3)))
    config = models.configuration(stage, optimizer=models.sgd(0.1))
    engine = zeroshard.initialize(model=model, config=config)[0]
    for _ in range(3):
        take_one_step(engine)
    return engine.parameter_digest()


def test_a_module_may_gather_its_own_parameters():
    assert len({digest for stage in (0, 3) for digest in world.run(2, gathers_within, stage=stage)}) == 1
