"""Moments in bf16 and in 8 bits: the same bits wherever they lie, less memory, and checkpoints that have fp32."""

import hashlib
import importlib.util

import models
import pytest
import simulated
import torch
import world
import zeroshard
from test_swap_files import WIDTH, configuration, make_engine_in_files, states, train_on_vectors

STEPS = 3
NARROW = {"zeroshard": {"offload": {"moment_dtype": "bf16"}}}


def narrow(dtype):
    return {"zeroshard": {"moment_dtype": dtype}}


def moments(engine):
    """Of every parameter, each whole."""
    keys = ("exp_avg", "exp_avg_sq")
    return [zeroshard.get_optimizer_state(param, key) for param in engine.module.parameters() for key in keys]


def moment_bytes(engine):
    """On all tiers: as planned."""
    lines = [line for line in engine._run.core.memory() if line[0] == "moments"]
    assert all(planned == peak for _, _, planned, peak in lines), lines
    return sum(planned for _, _, planned, _ in lines)


def blocks_of(moment):
    return moment.flatten().split(256)


def compare(folder, stage, dtype, kept):
    """``kept``: the dtype of the moments."""
    blocks = narrow(kept)
    scale = {"fp16": {"initial_scale_power": 8}}  # no step is skipped
    plain, swapped = (
        make_engine_in_files(stage, dtype, **blocks, **scale),
        make_engine_in_files(stage, dtype, [folder], **blocks, **scale),
    )
    wide = make_engine_in_files(stage, dtype, **scale)
    for engine in (plain, swapped, wide):
        train_on_vectors(engine, 0, STEPS)
    assert plain.parameter_digest() == swapped.parameter_digest() != wide.parameter_digest()
    assert moment_bytes(plain) == moment_bytes(swapped)
    if kept == "bf16":
        assert moment_bytes(wide) == 2 * moment_bytes(plain)
    else:  # small parameters, some of padding alone on a rank, keep fp32
        assert moment_bytes(plain) < 0.6 * moment_bytes(wide)
    assert states(plain) == states(swapped)
    for moment in moments(plain):
        assert moment.dtype == torch.float32
        assert kept == "int8" or torch.equal(moment, moment.bfloat16().float())
        assert kept == "bf16" or moment.numel() < 4096 or max(len(block.unique()) for block in blocks_of(moment)) < 256
    # Checkpoints have fp32, and go both ways between fp32 and bf16.
    for engine, name in ((plain, "plain"), (wide, "wide")):
        engine.save_checkpoint(f"{folder}/{name}")
        engine.wait_for_checkpoint()  # another engine loads it
    before, exact = moments(plain), moments(wide)
    wide.load_checkpoint(f"{folder}/plain")
    assert all(map(torch.equal, moments(wide), before))
    plain.load_checkpoint(f"{folder}/wide")
    for got, expected in zip(moments(plain), exact, strict=True):
        near = 0.0072 * expected.abs().max()  # half of the largest step between codes
        assert torch.equal(got, expected.bfloat16().float()) if kept == "bf16" else (got - expected).abs().max() <= near
    # A run that goes on from where it was has the bits of one that was not interrupted.
    train_on_vectors(swapped, STEPS, STEPS + 2)
    plain.load_checkpoint(f"{folder}/plain")
    train_on_vectors(plain, STEPS, STEPS + 2)
    assert plain.parameter_digest() == swapped.parameter_digest()
    # What is set is rounded to nearest; equal values are the scale of their block.
    for param in plain.module.parameters():
        zeroshard.set_optimizer_state(param, "exp_avg", torch.full(param.shape, 1.003))
        expected = torch.tensor(1.003).bfloat16().float() if kept == "bf16" else torch.tensor(1.003)
        assert zeroshard.get_optimizer_state(param, "exp_avg").unique().tolist() == [expected.item()]
    param = next(iter(plain.module.parameters()))
    before = zeroshard.get_optimizer_state(param, "exp_avg_sq")
    with pytest.raises(
        ValueError, match=r"state 'exp_avg_sq' of 'blocks.0.norm.weight' sums squares.*is -0.5: set values"
    ):
        zeroshard.set_optimizer_state(param, "exp_avg_sq", torch.full(param.shape, -0.5))
    assert torch.equal(zeroshard.get_optimizer_state(param, "exp_avg_sq"), before)
    return plain.parameter_digest()


@pytest.mark.parametrize("kept", ["bf16", "int8"])
@pytest.mark.parametrize("ranks,stage,dtype", [(1, 1, "bf16"), (2, 2, "fp32"), (2, 3, "bf16"), (3, 2, "fp16")])
def test_results_states_and_checkpoints(tmp_path, ranks, stage, dtype, kept):
    assert len(set(world.run(ranks, compare, folder=str(tmp_path), stage=stage, dtype=dtype, kept=kept))) == 1


@pytest.mark.parametrize("value", ["fp16", "bfloat16", "int4", 16, True])
def test_other_dtypes_are_refused(value):
    config = models.configuration(2, zeroshard={"offload": {"moment_dtype": value}})
    with pytest.raises(zeroshard.ConfigError, match=r"moment_dtype = .*must be one of fp32, bf16, int8"):
        zeroshard.initialize(model=models.stack(width=WIDTH), config=config)


def ranks_that_differ():
    blocks = NARROW if world.rank() == 1 else {}
    with pytest.raises(ValueError, match="the ranks disagree on the configuration"):
        make_engine_in_files(2, **blocks)
    return True


def test_ranks_must_agree():
    assert world.run(2, ranks_that_differ) == [True, True]


def digest_of(stage):
    """Ranks train on the same rows, so that their sums are those of one rank."""
    model = models.stack(width=WIDTH)
    config = configuration(stage, **narrow("int8"))
    engine = zeroshard.initialize(model=model, config=config)[0]
    for step in range(STEPS):
        x, y = models.vectors(step, 0, 8, WIDTH)
        engine.backward(torch.nn.functional.mse_loss(engine(x), y))
        engine.step()
    digest = hashlib.sha256()
    for state in [*moments(engine), *(zeroshard.get_master_weight(p) for p in engine.module.parameters())]:
        digest.update(state.numpy().tobytes())
    return digest.hexdigest()


def test_codes_do_not_depend_on_ranks_or_stage():
    """Means of equal gradients over 1, 2 and 4 ranks are exact."""
    runs = [(1, 0), (1, 3), (2, 1), (2, 3), (4, 0), (4, 2), (4, 3)]
    digests = {digest for ranks, stage in runs for digest in world.run(ranks, digest_of, stage=stage)}
    assert len(digests) == 1


def dynamic_map(signed):
    """The values of arXiv 2110.02861, as bitsandbytes makes them."""
    values = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, (2**decade if signed else 2 ** (decade + 1)) + 1, dtype=torch.float64)
        means = (10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2).tolist()
        values += means + ([-mean for mean in means] if signed else [])
    return torch.tensor(sorted(values), dtype=torch.float32)


class Coded:
    """A moment of one parameter as codes, by the formula alone."""

    def __init__(self, numel, signed):
        self.map, self.numel = dynamic_map(signed), numel
        self.codes = torch.full((-(-numel // 256), 256), 127 if signed else 0)
        self.scales = torch.zeros(len(self.codes), 1)

    def values(self):
        return (self.map[self.codes] * self.scales).flatten()[: self.numel]

    def store(self, values, scales=None):
        blocks = torch.nn.functional.pad(values, (0, self.codes.numel() - self.numel)).view_as(self.codes)
        self.scales = blocks.abs().amax(1, keepdim=True) if scales is None else scales.view(-1, 1)
        middles = (self.map[1:] + self.map[:-1]) / 2
        self.codes = torch.bucketize(blocks / self.scales.clamp(min=1e-38), middles)


LR = 1e-3


class Weighted(torch.nn.Module):
    """The gradient of each parameter is its input, whatever the parameters are."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weights = torch.nn.ParameterList(torch.randn(shape) for shape in ((90, 100), (4099,), (50,)))

    def forward(self, inputs):
        return sum((weight * x).sum() for weight, x in zip(self.weights, inputs, strict=True)) / 1000


def inputs_of(step, weights):
    """Of sizes from 1e-4 to 1, with a mean that is not 0."""
    steady, generator = torch.Generator().manual_seed(1), torch.Generator().manual_seed(100 + step)
    for weight in weights:
        size = 10 ** (-4 * torch.rand(weight.shape, generator=steady))
        yield size * (0.5 + torch.randn(weight.shape, generator=generator))


class Formula:
    """AdamW with coded moments, by the formulas alone."""

    def __init__(self, params):
        params = list(params)
        self.states = {p: (Coded(p.numel(), True), Coded(p.numel(), False)) for p in params if p.numel() >= 4096}
        self.small = torch.optim.AdamW([p for p in params if p.numel() < 4096], lr=LR, weight_decay=0.1)
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.small.step()
        self.steps += 1
        for param, (first, second) in self.states.items():
            grad = param.grad.flatten()
            mean, square = first.values().lerp(grad, 0.1), second.values() * 0.999 + 0.001 * grad * grad
            first.store(mean)
            second.store(square)
            denominator = (square / (1 - 0.999**self.steps)).sqrt() + 1e-8
            change = -LR / (1 - 0.9**self.steps) * mean / denominator
            param.mul_(1 - LR * 0.1).add_(change.view_as(param))

    def codes(self, param, slot):
        """With their scales; None for a moment in fp32."""
        coded = self.states.get(param)
        return coded and (coded[slot].codes.flatten()[: param.numel()], coded[slot].scales)


class BitsAndBytes:
    """For fp64 it chooses the nearest code. For fp32 its CPU library takes another one of up to 5 % of the values."""

    def __init__(self, params):
        import bitsandbytes
        from bitsandbytes.backends.cpu import ops

        def quantize(values, code_map, scales, codes, block):
            nearest = torch.ops.bitsandbytes.quantize_blockwise(values.double(), code_map, block)
            codes.copy_(nearest[0])
            scales.copy_(nearest[1])

        ops._quant_blockwise_fp32_direct = quantize
        self.optimizer = bitsandbytes.optim.AdamW8bit(params, lr=LR, weight_decay=0.1)
        self.step = self.optimizer.step

    def codes(self, param, slot):
        state = self.optimizer.state[param]
        codes = state[f"state{slot + 1}"]
        return (codes.flatten().long(), state[f"absmax{slot + 1}"]) if codes.dtype == torch.uint8 else None


def follow(kind):
    """The peer trains a copy of the model by itself, with the same gradients."""
    model, other = Weighted(), Weighted()
    adamw = {"type": "AdamW", "params": {"lr": LR, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}}
    config = models.configuration(2, optimizer=adamw, gradient_clipping=0, **narrow("int8"))
    engine, peer = zeroshard.initialize(model=model, config=config)[0], kind(other.parameters())
    for step in range(100):
        inputs = list(inputs_of(step, other.weights))
        loss = engine(inputs)
        engine.backward(loss)
        engine.step()
        other.zero_grad()
        expected = other(inputs)
        expected.backward()
        peer.step()
        assert abs(loss.item() - expected.item()) < 1e-4, (step, loss, expected)
    for slot, key in enumerate(("exp_avg", "exp_avg_sq")):
        same = total = 0
        for param, theirs in zip(engine.module.parameters(), other.parameters(), strict=True):
            assert (peer.codes(theirs, slot) is None) == (param.numel() < 4096)
            if param.numel() >= 4096:
                codes, scales = peer.codes(theirs, slot)
                ours = Coded(param.numel(), signed=slot == 0)
                ours.store(zeroshard.get_optimizer_state(param, key).flatten(), scales)
                same += int((ours.codes.flatten()[: param.numel()] == codes).sum())
                total += param.numel()
        assert same >= 0.999 * total, (key, same, total)


def test_codes_are_those_of_the_formula():
    world.run(1, follow, kind=Formula)


@pytest.mark.skipif(not importlib.util.find_spec("bitsandbytes"), reason="bitsandbytes is not installed")
def test_codes_are_those_of_bitsandbytes():
    world.run(1, follow, kind=BitsAndBytes)


def own_optimizers():
    model = models.stack(width=WIDTH)
    config = models.configuration(2, **NARROW, zero_allow_untested_optimizer=True)
    optimizer = torch.optim.RMSprop(model.parameters())
    with pytest.raises(zeroshard.ConfigError, match='RMSprop is an optimizer of your own.*set "fp32"'):
        zeroshard.initialize(model=model, optimizer=optimizer, config=config)
    return True


def optimizers_without_moments():
    sgd, muon = {"type": "SGD", "params": {"lr": 0.1}}, {"type": "Muon", "params": {"lr": 0.01}}
    for optimizer, told in ((sgd, "SGD without momentum keeps no moments"), (muon, "Muon keeps its momenta in fp32")):
        config = models.configuration(2, optimizer=optimizer, **narrow("int8"))
        with pytest.raises(zeroshard.ConfigError, match=f'zeroshard.moment_dtype = "int8": {told}'):
            zeroshard.initialize(model=models.stack(width=WIDTH), config=config)
    model = models.stack(width=WIDTH)
    config = models.configuration(2, **narrow("int8"))
    config.pop("optimizer", None)
    with pytest.raises(zeroshard.ConfigError, match="SGD without momentum"):
        zeroshard.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config)
    model = models.stack(width=WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    zeroshard.initialize(model=model, optimizer=optimizer, config=config)
    return True


def test_optimizers_without_moments_are_refused_on_all_ranks():
    assert world.run(2, optimizers_without_moments) == [True, True]


def test_optimizers_of_the_users_are_refused():
    assert world.run(2, own_optimizers) == [True, True]


def states_that_stay():
    part = {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}
    for zero, told in (({}, 'device is "none"'), (part, "ratio is 0.5")):
        config = models.configuration(2, optimizer=models.adamw(), zero_optimization=zero, **NARROW)
        with pytest.raises(zeroshard.ConfigError, match=f'moment_dtype = "bf16": .*{told}'):
            zeroshard.initialize(model=models.stack(width=WIDTH).to(world.device()), config=config)
    config = models.configuration(
        2, optimizer=models.adamw(), zero_optimization={"offload_optimizer": {"device": "auto"}}, **NARROW
    )
    engine = zeroshard.initialize(model=models.stack(width=WIDTH).to(world.device()), config=config)[0]
    return [tier for category, tier, planned, _ in engine._run.core.memory() if category == "moments" and planned]


def codes_on_a_device(stage, on_device):
    model = models.stack(width=WIDTH)
    config = configuration(stage, "bf16", **narrow("int8"))
    engine = zeroshard.initialize(model=model.to(world.device()) if on_device else model, config=config)[0]
    for step in range(STEPS):
        x, y = (models.share(each, world.rank(), world.size()) for each in models.vectors(step, 0, 12, WIDTH))
        out = engine(x.to(next(engine.module.parameters()).dtype))
        engine.backward(torch.nn.functional.mse_loss(out.float(), y))
        engine.step()
    digest = hashlib.sha256()
    for state in [*moments(engine), *(zeroshard.get_master_weight(p) for p in engine.module.parameters())]:
        digest.update(state.cpu().numpy().tobytes())
    where = {tier for category, tier, planned, _ in engine._run.core.memory() if category == "moments" and planned}
    return [digest.hexdigest(), sorted(where)]


@simulated.needed
def test_codes_of_a_device_do_not_depend_on_ranks_or_stage():
    for ranks in (1, 3):
        found = [world.run(ranks, codes_on_a_device, stage=stage, on_device=True, on="lazy") for stage in range(4)]
        assert len({digest for ranks in found for digest, _ in ranks}) == 1
        assert all(where == ["device"] for ranks in found for _, where in ranks)


@simulated.needed
def test_beside_a_device_they_must_leave_it():
    assert world.run(2, states_that_stay, on="lazy") == [["host"], ["host"]]
