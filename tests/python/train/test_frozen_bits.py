"""Frozen weights and buffers that are no numbers keep their bits: 4-bit weights packed into other dtypes, float8."""

import models
import pytest
import torch
import world
import zeroshard
from safetensors.torch import load_file
from torch import nn

KINDS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "fp8": torch.float8_e4m3fn,
    "fp8 e5m2": torch.float8_e5m2,
    "fp8 e8m0": torch.float8_e8m0fnu,
}
BYTES = 3 * 1024 * 8 + 24  # of which each of three ranks owns a part


def raw(seed):
    """Every 16-bit pattern of NaN among them, and signaling ones."""
    values = torch.randint(0, 256, (BYTES,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    values[:8] = torch.tensor([0x01, 0x7F, 0xA5, 0xFF, 0x81, 0x7F, 0x01, 0x7C], dtype=torch.uint8)
    return values


class Layer(nn.Module):
    def __init__(self, kind, seed, marked):
        super().__init__()
        self.packed = nn.Parameter(raw(seed).view(KINDS[kind]), requires_grad=False)
        if marked:
            self.packed.quant_state = "as bitsandbytes has it"
        self.register_buffer("buffer", raw(seed + 1).view(KINDS[kind]))
        self.adapter = nn.Linear(48, 48)

    def forward(self, x):
        seen = self.packed.detach().view(torch.uint8)
        return self.adapter(x) + seen[:48].to(x.dtype) / 255


class Repacking(nn.Module):
    """As Linear4bit of bitsandbytes, which takes another kernel in evaluation on some CPUs."""

    def __init__(self):
        super().__init__()
        self.support_avx512bf16_for_cpu = True
        self.packed = nn.Parameter(raw(0), requires_grad=False)
        self.adapter = nn.Linear(48, 48)

    def forward(self, x):
        if self.support_avx512bf16_for_cpu and not self.training:
            self.packed.data = self.packed.data.view(-1, 2).contiguous()
        return self.adapter(x) + self.packed.view(-1)[:48].to(x.dtype) / 255


def bits(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8)


def unchanged_bits_after_training(kind, dtype, stage, directory, marked, buffers):
    """Where the bits of the first layer's weights and of its buffer are still those that they were."""
    model = nn.Sequential(Layer(kind, 0, marked), Layer(kind, 2, marked))
    if not buffers:  # training in 16 bits casts floating-point buffers
        del model[0].buffer, model[1].buffer
    trained = [param for param in model.parameters() if param.requires_grad]
    engine, *_ = zeroshard.initialize(
        model=model, optimizer=torch.optim.AdamW(trained, lr=1e-2), config=models.configuration(stage, dtype)
    )
    x = torch.ones(2, 48, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    engine.backward(engine(x).float().pow(2).mean())
    engine.step()
    same = {}

    def look(when):
        with zeroshard.gathered(list(model.parameters())):
            same[when] = torch.equal(bits(model[0].packed), raw(0)) and model[1].packed.dtype == KINDS[kind]
        if buffers:
            same[f"buffer {when}"] = torch.equal(bits(model[0].buffer), raw(1))

    look("trained")
    engine.save_checkpoint(directory)
    engine.wait_for_checkpoint()
    engine.save_16bit_model(directory, "model.safetensors")
    with zeroshard.gathered(list(model.parameters()), modify_rank=0):
        model[0].packed.data.view(torch.uint8).zero_()
    engine.load_checkpoint(directory)
    look("loaded")
    if world.rank() == 0:
        exported = load_file(f"{directory}/model.safetensors")["0.packed"]
        same["exported"] = exported.dtype == KINDS[kind] and torch.equal(bits(exported), raw(0))
    engine.destroy()
    same["returned"] = torch.equal(bits(model[0].packed), raw(0))
    return same


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_frozen_weights_keep_their_bits(stage, kind, tmp_path):
    case = {"kind": kind, "stage": stage, "directory": str(tmp_path), "marked": False, "buffers": True}
    for same in world.run(3, unchanged_bits_after_training, dtype="fp32", **case):
        assert all(same.values()), same


@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_keep_their_bits_where_training_is_in_16_bits(kind, tmp_path):
    case = {"kind": kind, "stage": 3, "directory": str(tmp_path), "marked": True, "buffers": False}
    for same in world.run(3, unchanged_bits_after_training, dtype="bf16", **case):
        assert all(same.values()), same


def complex_weights():
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].table = nn.Parameter(torch.zeros(4, dtype=torch.complex128), requires_grad=False)
    zeroshard.initialize(model=model, config=models.configuration(0, optimizer=models.adamw()))


def test_a_dtype_that_no_checkpoint_holds_is_refused_at_the_start():
    (rank,) = world.run_ranks(1, complex_weights)
    assert "parameter '0.table': a checkpoint cannot hold tensors of type ComplexDouble" in rank.error


def losses_around_an_evaluation(stage):
    torch.manual_seed(0)
    model = nn.Sequential(Repacking(), Repacking())
    trained = [param for param in model.parameters() if param.requires_grad]
    engine, *_ = zeroshard.initialize(
        model=model, optimizer=torch.optim.AdamW(trained, lr=1e-2), config=models.configuration(stage)
    )
    losses = []
    for training in (True, False, True, False):
        engine.train(training)
        loss = engine(torch.ones(2, 48)).pow(2).mean()
        losses.append(loss.item())
        if training:
            engine.backward(loss)
            engine.step()
    return losses


@pytest.mark.parametrize("stage", [0, 3])
def test_weights_keep_their_layout_in_evaluation(stage):
    (first, second) = world.run(2, losses_around_an_evaluation, stage=stage)
    assert first == second and first[0] > first[1] > first[3]
