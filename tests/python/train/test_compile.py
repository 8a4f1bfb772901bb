"""engine.compile: the same training at every stage, from compiled units."""

import copy

import models
import pytest
import torch
import world
import zeroshard

LAYERS = (
    10  # more than the graphs of one function that torch.compile makes before it gives up: blocks must share theirs
)
# Fused kernels round otherwise than the operations of eager PyTorch do.
INDUCTOR_TOLERANCE = 1e-5


def configuration(stage, accumulation=1):
    return models.configuration(stage, accumulation=accumulation, optimizer=models.adamw(eps=1e-3))


def train_compiled(model, loss_of, stage, backend, **options):
    """Losses of three steps, the digest, and how many graphs there are."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    engine = zeroshard.initialize(model=model, config=configuration(stage, accumulation=2))[0]
    assert not engine.is_compiled
    if backend is not None:
        engine.compile(backend=backend, **options)
        assert engine.is_compiled
        engine.compile(backend="no such backend")  # does nothing
    losses = []
    for step in range(6):
        loss = loss_of(engine, step)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.eval()
    with torch.no_grad():
        losses.append(loss_of(engine, 0).item())
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return losses, engine.parameter_digest(), graphs


def vector_loss(engine, step):
    x, y = (models.share(each, world.rank(), world.size()) for each in models.vectors(step, 0, 2 * world.size()))
    return torch.nn.functional.mse_loss(engine(x), y)


def token_loss(engine, step):
    ids = models.share(models.tokens(step, 0, 2 * world.size()), world.rank(), world.size())
    return models.language_loss(engine, ids)


def compiled_and_eager(stage):
    options = {"compile_kwargs": {"fullgraph": True}}  # no graph breaks: hooks are outside
    return [
        train_compiled(models.stack(layers=LAYERS), vector_loss, stage, "aot_eager", **options),
        train_compiled(models.stack(layers=LAYERS), vector_loss, stage, None),
    ]


@pytest.mark.parametrize("stage", range(4))
def test_compiled_units_train_alike(stage):
    for (losses, digest, graphs), (eager_losses, eager_digest, _) in world.run(2, compiled_and_eager, stage=stage):
        assert losses == eager_losses
        assert digest == eager_digest
        assert 0 < graphs < LAYERS


def llama_with_recomputation(stage, tied):
    results = []
    for backend in ("aot_eager", None):
        model = models.tiny_llama(tied=tied)
        model.gradient_checkpointing_enable()
        results.append(train_compiled(model, token_loss, stage, backend))
    return results


@pytest.mark.parametrize("tied", [False, True])
def test_compiled_blocks_of_a_language_model_are_recomputed(tied):
    for (losses, digest, graphs), eager in world.run(2, llama_with_recomputation, stage=3, tied=tied):
        assert [losses, digest] == eager[:2]
        assert graphs > 0


def default_backend():
    return [train_compiled(models.stack(layers=1), vector_loss, 3, backend)[0] for backend in ("inductor", None)]


def test_the_default_backend():
    for losses, eager in world.run(2, default_backend, timeout_s=300):
        assert losses == pytest.approx(eager, rel=INDUCTOR_TOLERANCE)


def compiled_by_the_caller():
    whole, blocks = models.stack(), models.stack()
    whole.compile(backend="aot_eager")
    for block in blocks.blocks:
        block.compile(backend="aot_eager")
    return [train_compiled(model, vector_loss, 3, None) for model in (models.stack(), whole, blocks)]


def test_what_the_caller_has_compiled_trains_alike():
    for eager, *compiled in world.run(2, compiled_by_the_caller):
        for losses, digest, graphs in compiled:
            assert [losses, digest] == eager[:2]
            assert graphs > 0


class Scaled(models.Stack):
    """Parameters of its own around units, so that it is a unit with others inside."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(5))

    def forward(self, x):
        return self.scale * super().forward(x)


def refused():
    engine = zeroshard.initialize(model=Scaled(), config=configuration(3))[0]
    said = []
    for arguments in ({"schedule": []}, {"compiled_autograd_enabled": True}):
        with pytest.raises(ValueError) as caught:
            engine.compile(**arguments)
        said.append(str(caught.value))
    engine.compile(backend="aot_eager")
    compiled = [name for name, module in engine.module.named_modules() if "forward" in vars(module)]
    return said, compiled


def test_what_is_refused_and_what_is_compiled():
    ((schedule, autograd), compiled) = world.run(1, refused)[0]
    assert "schedule is of DeepCompile" in schedule
    assert "compiled_autograd_enabled is not supported" in autograd
    assert compiled == ["blocks.0", "blocks.1", "blocks.2", "head"]


def copies(stage):
    """Outputs of a copy whose weights are zero; and whether the live model still trains."""
    engine = zeroshard.initialize(model=models.stack(), config=configuration(stage))[0]
    engine.compile(backend="eager")
    x, y = models.vectors(0, 0, 2)
    engine.backward(torch.nn.functional.mse_loss(engine(x), y))
    engine.step()
    with zeroshard.gathered(engine.parameters()):
        copied = copy.deepcopy(engine.module)
    with torch.no_grad():
        for param in copied.parameters():
            param.zero_()
        return [copied(x).abs().max().item(), engine(x).abs().max().item() > 0]


def test_a_copy_of_a_compiled_model_computes_with_its_own_weights():
    assert world.run(1, copies, stage=1) == [[0, True]]
