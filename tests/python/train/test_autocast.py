"""``torch_autocast``: forward in torch.autocast over parameters that keep their dtype; and the dtypes of buffers."""

import models
import pytest
import torch
import world
import zeroshard
from errors import message_of
from zeroshard.compat.deepspeed import initialize


class Seen(models.Stack):
    """Notes the dtypes of what it computes."""

    def forward(self, x):
        out = super().forward(x)
        self.seen = [str(out.dtype), str(self.head.weight.dtype), torch.is_autocast_enabled("cpu")]
        return out


def loss_of_share(model, step, rank, ranks):
    x, y = (models.share(each, rank, ranks) for each in models.vectors(step, 0, 2 * ranks))
    return torch.nn.functional.mse_loss(model(x).float(), y)


def autocast(stage, dtype):
    """Weights after four steps beside those of torch.autocast, and in fp16 of a GradScaler, in one process."""
    torch.manual_seed(0)
    model = Seen()
    config = models.configuration(stage, optimizer=models.adamw(eps=1e-3), gradient_clipping=0)
    engine = initialize(model=model, config=config | {"torch_autocast": {"enabled": True, "dtype": dtype}})[0]
    torch.manual_seed(0)
    reference, of_torch = Seen(), {"bfloat16": torch.bfloat16, "fp16": torch.float16}[dtype]
    plain = torch.optim.AdamW(reference.parameters(), lr=1e-2, eps=1e-3, weight_decay=0)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == "fp16")

    def run(x):
        with torch.autocast("cpu", of_torch):
            return reference(x)

    for step in range(4):
        engine.backward(loss_of_share(engine, step, world.rank(), world.size()))
        engine.step()
        for rank in range(world.size()):
            scaler.scale(loss_of_share(run, step, rank, world.size())).backward()
        for param in reference.parameters():  # as DDP: the mean of the ranks' gradients
            param.grad /= world.size()
        scaler.step(plain)
        scaler.update()
        plain.zero_grad()
    worst = 0.0
    with zeroshard.gathered(model.parameters()):
        for own, other in zip(model.parameters(), reference.parameters(), strict=True):
            worst = max(worst, (own - other).abs().max().item())
    moved = torch.is_autocast_enabled("cpu")
    facts = [engine.torch_autocast_enabled(), str(engine.torch_autocast_dtype()), engine.fp16_enabled()]
    return model.seen, worst, [engine.loss_scale(), scaler.get_scale()], moved, facts


@pytest.mark.parametrize("ranks,stage,dtype", [(1, 0, "bfloat16"), (2, 2, "bfloat16"), (2, 3, "fp16")])
def test_forward_is_in_autocast(ranks, stage, dtype):
    name = {"bfloat16": "torch.bfloat16", "fp16": "torch.float16"}[dtype]
    for seen, worst, scales, outside, facts in world.run(ranks, autocast, stage=stage, dtype=dtype):
        assert seen == [name, "torch.float32", True] and not outside
        # Products of 8 or 11 bits decide about Adam's first steps, which are of 1e-2: ranks sum them in another order.
        assert worst < 2e-3
        assert scales[0] == scales[1] and (scales[0] == 1.0) == (dtype == "bfloat16"), scales
        assert facts == [True, name, False]


def wrong(block):
    return message_of(
        lambda: zeroshard.initialize(
            model=models.stack(), config=models.configuration(0, optimizer=models.adamw()) | {"torch_autocast": block}
        )
    )


def test_a_section_that_is_wrong():
    assert "torch_autocast.dtype: this key is required" in wrong({"enabled": True})
    assert "torch_autocast.dtype" in wrong({"enabled": True, "dtype": "int8"})
    assert "lower_precision_safe_module" in wrong({"enabled": True, "dtype": "bf16", "lower_precision_safe": []})
    assert wrong({"enabled": False, "dtype": "bf16"}) is None


# -- buffers -----------------------------------------------------------------------------------------------------------


class Buffers(models.Stack):
    _keep_in_fp32_modules_strict = ("bias_of",)
    _keep_in_fp32_modules = ("only_fp16",)

    def __init__(self):
        super().__init__()
        self.register_buffer("bias_of_router", torch.full((3,), 1 / 3, dtype=torch.bfloat16))
        self.register_buffer("only_fp16", torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("angles", torch.full((3,), 1 / 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.norm = torch.nn.BatchNorm1d(5)


def dtypes(dtype, **data_types):
    config = models.configuration(0, dtype, optimizer=models.adamw()) | {"data_types": data_types}
    engine = zeroshard.initialize(model=Buffers(), config=config)[0]
    found = {name: str(buffer.dtype).removeprefix("torch.") for name, buffer in engine.module.named_buffers()}
    engine.destroy()
    return [found[name] for name in ("bias_of_router", "only_fp16", "angles", "count", "norm.running_mean")]


def test_the_dtypes_of_buffers():
    own = ["bfloat16", "bfloat16", "float32", "int64", "float32"]
    assert dtypes("fp32") == own
    assert dtypes("bf16") == ["float32", "bfloat16", "float32", "int64", "bfloat16"]
    assert dtypes("fp16") == ["float32", "float32", "float32", "int64", "float16"]
    assert dtypes("bf16", keep_in_fp32_modules=[]) == ["bfloat16", "bfloat16", "float32", "int64", "bfloat16"]
    assert dtypes("bf16", keep_in_fp32_modules=["only*16"]) == ["bfloat16", "float32", "float32", "int64", "bfloat16"]
    assert dtypes("bf16", keep_in_fp32_modules="auto", buffer_dtype="bf16") == [
        "float32",
        *["bfloat16"] * 2,
        "int64",
        "bfloat16",
    ]
    assert dtypes("fp32", buffer_dtype="fp16") == ["float16", "float16", "float16", "int64", "float16"]
    assert dtypes("fp32", keep_in_fp32_modules=["angles"]) == own
    assert dtypes("bf16", keep_in_fp32_modules=["[xy]_fp", "(?i)BIAS"])[:2] == ["float32", "float32"]


@pytest.mark.parametrize("bad", ["(router", "*[", "+"])
def test_a_wrong_pattern_is_an_error_of_the_configuration(bad, monkeypatch):
    for dtype in ("bf16", "fp32"):
        with pytest.raises(zeroshard.ConfigError) as said:
            dtypes(dtype, keep_in_fp32_modules=["angles", bad])
        assert f'data_types.keep_in_fp32_modules has "{bad}", which is no pattern' in str(said.value)
    monkeypatch.setattr(Buffers, "_keep_in_fp32_modules_strict", (bad,))
    with pytest.raises(zeroshard.ConfigError, match="_keep_in_fp32_modules of the model has"):
        dtypes("bf16")


def differing():
    own = [{"buffer_dtype": ("fp32", "bf16")[world.rank()]}, {"keep_in_fp32_modules": [("a", "b")[world.rank()]]}]
    return [message_of(lambda given=given: dtypes("bf16", **given)) for given in own]


def test_ranks_agree_on_the_dtypes_of_buffers():
    for buffer_dtype, kept in world.run(2, differing):
        assert "the ranks disagree on the configuration: on rank 0 'data_types.buffer_dtype'" in buffer_dtype
        assert "the ranks disagree on the configuration: on rank 0 'data_types.keep_in_fp32_modules'" in kept
