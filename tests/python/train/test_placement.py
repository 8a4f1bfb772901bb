"""Units that a configuration places one by one: some whole, some sharded, the same bits."""

import models
import pytest
import torch
import torch.distributed as dist
import world
import zeroshard

REPLICATED, SHARDED = "replicated", "sharded"
SHARDED_ALONE = [{"units": "*", "parameters": SHARDED}]
PLACEMENTS = {
    "those of the stage": [],
    "small units sharded, too": SHARDED_ALONE,
    "all whole": [{"units": "*", "parameters": REPLICATED}],
    "the first two blocks whole": [*SHARDED_ALONE, {"units": "blocks.0-1", "parameters": REPLICATED}],
    "every other one": [{"units": f"blocks.{block}", "parameters": REPLICATED} for block in (0, 2)],
    "the last counts": [{"units": "blocks.*", "parameters": REPLICATED}, {"units": "blocks.1", "parameters": SHARDED}],
}


def configuration(rules, stage=3, dtype="fp32", accumulation=1, threshold=300, transport="auto"):
    return models.configuration(
        stage,
        dtype,
        accumulation=accumulation,
        threshold=threshold,
        gradient_clipping=0.5,
        optimizer=models.adamw(),
        zeroshard={"transport": transport, **({"placement": rules} if rules else {})},
        fp16={"initial_scale_power": 8},
    )


def initialize(*arguments, model=None, **options):
    config = configuration(*arguments, **options)
    return zeroshard.initialize(model=model or models.stack(), config=config)[0]


def train_all(dtype, accumulation, transport):
    results = []
    for name, rules in [("stage 0", []), *PLACEMENTS.items()]:
        stage = 0 if name == "stage 0" else 3
        engine = initialize(rules, stage, dtype, accumulation, transport=transport)
        models.train(engine, range(4), models.own_loss, accumulation)
        memory = engine.memory_report()
        assert memory["measured_peak"] == memory["planned"], name
        results.append([name, engine.parameter_digest(), memory["planned"]["parameters"]])
        engine.destroy()
    return results


@pytest.mark.parametrize("transport", ["shm", "process_group"])
@pytest.mark.parametrize("size,dtype,accumulation", [(2, "bf16", 2), (3, "fp32", 1), (3, "fp16", 2), (4, "bf16", 1)])
def test_no_placement_changes_a_bit_or_the_plan(size, dtype, accumulation, transport):
    by_rank = world.run(size, train_all, dtype=dtype, accumulation=accumulation, transport=transport)
    digests = {digest for results in by_rank for _, digest, _ in results}
    assert len(digests) == 1, by_rank[0]
    parameters = {name: held for name, _, held in by_rank[0]}
    assert parameters["all whole"] == parameters["stage 0"]
    assert parameters["small units sharded, too"] == parameters["those of the stage"]  # whole ones are in the ring
    sharded, whole = parameters["small units sharded, too"], parameters["all whole"]
    assert (
        sharded < parameters["every other one"] < whole and sharded < parameters["the first two blocks whole"] < whole
    )


def train_alone(dtype, accumulation):
    results = []
    for stage, shards in [(0, False), (2, False), (2, True), (3, False), (3, True)]:
        config = configuration([], stage, dtype, accumulation)
        config["zeroshard"]["shard_one_rank"] = shards
        engine = zeroshard.initialize(model=models.stack(), config=config)[0]
        models.train(engine, range(4), models.own_loss, accumulation)
        memory = engine.memory_report()
        assert memory["measured_peak"] == memory["planned"], (stage, shards)
        results.append([stage, shards, engine.parameter_digest(), sorted(memory["planned"])])
        engine.destroy()
    return results


@pytest.mark.parametrize("dtype,accumulation", [("fp32", 1), ("bf16", 2)])
def test_one_rank_may_gather_and_reduce_as_several_do(dtype, accumulation):
    (results,) = world.run(1, train_alone, dtype=dtype, accumulation=accumulation)
    assert len({digest for _, _, digest, _ in results}) == 1, results
    rings = {(stage, shards): [name for name in held if "ring" in name] for stage, shards, _, held in results}
    assert rings == {
        (0, False): [],
        (2, False): [],
        (2, True): ["reduce ring"],
        (3, False): [],
        (3, True): ["gather ring", "reduce ring"],
    }


def read_and_write(size):
    """At stage 3 with one block whole: its parameters are read, and written, as at stage 2."""
    engines = [
        initialize([{"units": "blocks.1", "parameters": REPLICATED}], threshold=0),
        initialize([], stage=2),
    ]
    messages = []
    for engine in engines:
        models.train(engine, range(2), models.own_loss)
        with torch.no_grad():
            engine.module.blocks[1].up.weight.mul_(0.5)
        models.train(engine, range(2, 4), models.own_loss)
        weight = engine.module.blocks[0].up.weight
        try:
            weight.sum().item()
            messages.append("")
        except RuntimeError as error:
            messages.append(str(error))
    return [engine.parameter_digest() for engine in engines], messages


def test_a_unit_that_is_whole_is_read_and_written_like_any_tensor():
    for digests, messages in world.run(3, read_and_write, size=3):
        assert digests[0] == digests[1]
        assert "is sharded: outside of forward" in messages[0] and messages[1] == ""


def save_and_load(folder):
    first = initialize(PLACEMENTS["every other one"], dtype="bf16")
    models.train(first, range(2), models.own_loss)
    first.save_checkpoint(folder)
    models.train(first, range(2, 4), models.own_loss)
    digests = [first.parameter_digest()]
    for rules in PLACEMENTS.values():
        engine = initialize(rules, dtype="bf16", model=models.stack(seed=1))
        engine.load_checkpoint(folder)
        models.train(engine, range(2, 4), models.own_loss)
        digests.append(engine.parameter_digest())
    return digests


def test_a_checkpoint_loads_under_any_placement(tmp_path):
    digests = world.run(3, save_and_load, folder=str(tmp_path))
    assert len({digest for of_rank in digests for digest in of_rank}) == 1, digests[0]


def take_over():
    model = models.stack()
    first = initialize(PLACEMENTS["every other one"], model=model)
    models.train(first, range(2), models.own_loss)
    second = initialize(PLACEMENTS["the first two blocks whole"], model=model)
    models.train(second, range(2), models.own_loss)
    with zeroshard.gathered(list(model.parameters())):
        values = [float(param.sum()) for param in model.parameters()]
    second.destroy()
    return values, [float(param.sum()) for param in model.parameters()]


def test_another_placement_takes_a_module_over():
    for gathered, ordinary in world.run(2, take_over):
        assert gathered == ordinary


def refused(rules, stage, differs):
    if differs and world.rank() == 1:
        rules = []
    try:
        initialize(rules, stage)
    except (zeroshard.Error, ValueError) as error:
        if dist.is_initialized():
            dist.barrier()  # a rank that ended now would be the error of one that still connects
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize(
    "rules,stage,differs,parts",
    [
        ([{"units": "blocks.7", "parameters": REPLICATED}], 3, False, ["zeroshard.placement[0].units is 'blocks.7'"]),
        ([{"units": "blocks.7", "parameters": REPLICATED}], 3, False, ["names no unit", "'blocks.0', 'blocks.1'"]),
        ([{"units": "blocks.0", "parameters": REPLICATED}], 2, False, ["zeroshard.placement", "is for stage 3"]),
        ([{"units": "blocks.0", "gradients": REPLICATED}], 3, False, ["zeroshard.placement", "a list of"]),
        ([{"units": "blocks.0", "parameters": REPLICATED}], 3, True, ["configuration", "rank"]),
    ],
)
def test_a_placement_that_makes_no_sense_is_refused(rules, stage, differs, parts):
    for message in world.run(2, refused, rules=rules, stage=stage, differs=differs):
        assert message is not None
        for part in parts:
            assert part in message, message


# -- Units that stay whole and enter the loss on some ranks alone -----------------------------------------------------


class Gate(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, 3)

    def forward(self, x):
        return self.linear(x).sum(-1, keepdim=True)


class Gated(torch.nn.Module):
    """A gate behind the fourth of six blocks, and perhaps once more behind the second."""

    def __init__(self, width=24):
        super().__init__()
        self.blocks = torch.nn.ModuleList([models.Residual(width) for _ in range(6)])
        self.gate = Gate(width)

    def forward(self, x, places):
        gates = []
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index in places:
                gates.append(self.gate(x).mean())
        return x.square().mean(), gates


def train_gated(stage, threshold, rules, places, from_step, no_sync):
    torch.manual_seed(0)
    config = configuration(rules, stage, threshold=threshold)
    config["zeroshard"] |= {"unit_classes": ["Residual", "Gate"], "timeout_s": 10}
    engine = zeroshard.initialize(model=Gated(), config=config)[0]
    for step in range(5):
        for micro in range(2 if no_sync else 1):
            torch.manual_seed(100 * step + 10 * micro + engine.rank())
            loss, gates = engine(torch.randn(2, 24), places)
            uses = step < from_step or engine.rank() == step % engine.world_size()
            for index, gate in enumerate(gates):
                if uses or (len(gates) > 1 and index == engine.rank() % 2):
                    loss = loss + gate
            if no_sync and micro == 0:
                with engine.no_sync():
                    engine.backward(loss)
            else:
                engine.backward(loss)
        engine.step()
    return engine.parameter_digest()


@pytest.mark.parametrize("no_sync", [False, True])
@pytest.mark.parametrize("from_step", [0, 2])
@pytest.mark.parametrize("places", [[3], [1, 3], [5], [0]])
def test_a_unit_that_is_whole_may_enter_the_loss_on_some_ranks_alone(places, from_step, no_sync):
    case = {"places": places, "from_step": from_step, "no_sync": no_sync}
    whole = [{"units": "gate", "parameters": REPLICATED}]
    digests = [
        world.run(3, train_gated, stage=1, threshold=0, rules=[], **case),
        world.run(3, train_gated, stage=3, threshold=100, rules=[], **case),
        world.run(3, train_gated, stage=3, threshold=0, rules=whole, **case),
    ]
    assert len({digest for of_world in digests for digest in of_world}) == 1, digests
