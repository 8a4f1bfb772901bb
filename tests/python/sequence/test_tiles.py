"""zeroshard.tile: losses and MLPs in tiles give what they give whole, at every stage, with the same communication."""

import copy
import functools
import itertools
import types

import models
import pytest
import sequences
import torch
import world
import zeroshard
from torch import nn
from zeroshard.compat import tiles as theirs

transformers = pytest.importorskip("transformers")

_SIZES = {
    "vocab_size": models.VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 12,
    "use_cache": False,
    "initializer_range": 0.1,
}
_KINDS = {
    "llama": {},
    "qwen3": {"tie_word_embeddings": True},
    "qwen2": {},
    "gemma2": {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 12},
    "gpt2": {"n_embd": 24, "n_layer": 2, "n_head": 2, "initializer_range": 0.1}
    | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
}


def make_language_model(kind="llama", **changes):
    sizes = {"vocab_size": models.VOCABULARY} if kind == "gpt2" else _SIZES
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **_KINDS[kind], **changes})
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()


def batch(length=11, samples=2):
    ids = models.tokens(0, 0, samples, length)
    labels = ids.clone()
    labels[0, :4] = -100
    return {"input_ids": ids, "labels": labels}


def gradients(model, scale=1.0, **inputs):
    torch.manual_seed(1)
    output = model(**inputs)
    (output.loss * scale).backward()
    grads = {name: param.grad for name, param in model.named_parameters()}
    model.zero_grad()
    return output, grads


def check_same(model, tiled, **inputs):
    whole, expected = gradients(model, **inputs)
    output, found = gradients(tiled, **inputs)
    torch.testing.assert_close(output.loss, whole.loss, rtol=1e-6, atol=1e-6)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6, msg=name)
    return output


@pytest.mark.parametrize("kind", _KINDS)
def test_losses_and_gradients_are_those_without_tiles(kind):
    model = make_language_model(kind)
    tiled = copy.deepcopy(model)
    zeroshard.tile(tiled, loss=4, mlp=3)  # neither divides the length
    output = check_same(model, tiled, **batch())
    with pytest.raises(zeroshard.StateError, match="skip_logits=False"):
        output.logits[0]
    assert not hasattr(output.logits, "shape")
    check_same(model, tiled, **batch(), num_items_in_batch=7)
    check_same(model, tiled, **batch(), scale=0.25)
    shifted = batch() | {"shift_labels": batch()["labels"].roll(-1, 1)}
    check_same(model, tiled, **shifted)


def test_a_head_with_a_bias_and_other_ignored_labels():
    model = make_language_model()
    model.lm_head = nn.Linear(24, models.VOCABULARY)
    tiled = copy.deepcopy(model)
    zeroshard.tile(tiled, loss=3, mlp=2)
    check_same(model, tiled, **batch())
    inputs = batch()
    inputs["labels"] = torch.where(inputs["labels"] < 0, 5, inputs["labels"])
    check_same(model, tiled, **inputs, ignore_index=5)
    nothing = {"input_ids": inputs["input_ids"], "labels": torch.full_like(inputs["labels"], -100)}
    assert model(**nothing).loss.isnan() and tiled(**nothing).loss.isnan()


def test_tiles_of_the_loss_have_the_logits_of_a_tile_alone():
    model = make_language_model()
    zeroshard.tile(model, loss=4, mlp=None)
    rows = []
    model.lm_head.register_forward_hook(lambda module, args, output: rows.append(output.shape[1]))
    model(**batch()).loss.backward()
    assert rows == [3, 3, 3, 2]  # once: the gradients come with the loss
    mlp_rows = []
    zeroshard.tile(model, loss=None, mlp=4)
    model.model.layers[0].mlp.up_proj.register_forward_hook(
        lambda module, args, output: mlp_rows.append(output.shape[1])
    )
    model(**batch()).loss.backward()
    assert mlp_rows == [3, 3, 3, 2] * 2 and rows[4:] == [11]


def test_logits_are_whole_where_they_are_wanted():
    model, tiled = make_language_model(), make_language_model()
    zeroshard.tile(tiled, loss=3, mlp=3)
    inputs = batch()
    ids = {"input_ids": inputs["input_ids"]}
    with torch.no_grad():
        torch.testing.assert_close(tiled(**ids).logits, model(**ids).logits)
    torch.testing.assert_close(tiled(**inputs, skip_logits=False).logits, model(**inputs).logits)
    tiled.eval(), model.eval()
    with torch.no_grad():
        whole, output = model(**inputs), tiled(**inputs)
        torch.testing.assert_close(output.logits, whole.logits)
        torch.testing.assert_close(tiled(**inputs, skip_logits=True).loss, whole.loss)
        pair = tiled(**inputs, skip_logits=True, return_dict=False)
        torch.testing.assert_close(pair[0], whole.loss)
    prompt = inputs["input_ids"][:1, :5]
    given = {"max_new_tokens": 6, "do_sample": False, "use_cache": True, "pad_token_id": 0}
    assert torch.equal(tiled.generate(prompt, **given), model.generate(prompt, **given))


def test_a_second_call_changes_the_numbers_and_none_takes_tiles_away():
    model = make_language_model()
    forward = type(model).forward
    zeroshard.tile(model, loss=2, mlp=2)
    zeroshard.tile(model, loss=5, mlp=None)
    assert model.forward.tiles == 5 and "forward" not in vars(model.model.layers[0].mlp)
    zeroshard.tile(model, loss=None, mlp=2)
    assert model.forward.__func__ is forward and model.model.layers[0].mlp.forward.tiles == 2


def test_a_copy_of_a_tiled_model_is_tiled_itself():
    model = make_language_model()
    zeroshard.tile(model, loss=3, mlp=3)
    copied = copy.deepcopy(model)
    assert copied.forward.module is copied
    check_same(make_language_model(), copied, **batch())
    with torch.no_grad():
        copied.lm_head.weight.zero_()
    assert copied(**batch()).loss != model(**batch()).loss


def test_auto_takes_no_tiles_where_all_is_small():
    model = make_language_model()
    zeroshard.tile(model)
    assert isinstance(model(**batch()).logits, torch.Tensor)
    assert zeroshard._C.loss_tiles(4096, 32768) == 6 and zeroshard._C.loss_tiles(1 << 20, 128256) > 5000
    assert zeroshard._C.mlp_tiles(4096, 1024) == 4 and zeroshard._C.mlp_tiles(1, 1024) == 1


class Alone(nn.Module):
    def forward(self, x):
        return x


def test_models_that_are_not_known():
    with pytest.raises(ValueError, match="Alone has no causal language model .* loss=None"):
        zeroshard.tile(Alone())
    with pytest.raises(ValueError, match="Alone has no MLP .* mlp=None"):
        zeroshard.tile(Alone(), loss=None)
    for wrong in (0, -1, True, "all", 1.5):
        with pytest.raises(ValueError, match="loss is"):
            zeroshard.tile(make_language_model(), loss=wrong)
    model = make_language_model()
    zeroshard.tile(model, loss=3)
    model.loss_function = lambda logits, labels, **_: logits.sum()
    with pytest.raises(zeroshard.StateError, match="its loss is <lambda>.*loss=None"):
        model(**batch())
    assert vars(model).get("model") is None and vars(model)["_loss_function"] is model.loss_function


class Adds(transformers.LlamaForCausalLM):
    def forward(self, input_ids=None, labels=None, **kwargs):
        output = super().forward(input_ids=input_ids, labels=labels, **kwargs)
        if labels is not None:
            output.loss = output.loss + 1
        return output


def test_a_loss_to_which_the_model_adds_is_refused():
    model = Adds(make_language_model().config).train()
    zeroshard.tile(model, loss=3)
    with pytest.raises(zeroshard.StateError, match=r"changes what self.loss_function returns.*loss=None"):
        model(**batch())


def test_a_loss_of_liger_is_left_alone():
    model = make_language_model()
    own = model.forward.__func__

    def forward(self, input_ids=None, labels=None, **kwargs):
        return own(self, input_ids=input_ids, labels=labels, **kwargs)

    forward.__module__ = "liger_kernel.transformers.model.llama"
    model.forward = types.MethodType(forward, model)
    zeroshard.tile(model)
    assert isinstance(model.forward, types.MethodType)
    assert isinstance(vars(model.model.layers[0].mlp)["forward"], zeroshard.tiles._TiledMLP)


@pytest.mark.parametrize("reentrant", [False, True])
def test_with_activation_checkpoints(reentrant):
    model, tiled = make_language_model(), make_language_model()
    zeroshard.tile(tiled, loss=3, mlp=4)
    tiled.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    check_same(model, tiled, **batch())


def test_dropout_is_the_same_in_both_passes():
    mlp = make_language_model("gpt2", resid_pdrop=0.5).transformer.h[0].mlp
    x = torch.randn(2, 11, 24, requires_grad=True)

    def compute(forward):
        torch.manual_seed(3)
        output = forward()
        torch.rand(5)  # what comes between the passes
        grads = torch.autograd.grad(output.square().sum(), [x, *mlp.parameters()])
        return [output, *grads, torch.rand(1)]

    expected = compute(lambda: torch.cat([mlp(tile.contiguous()) for tile in x.split(4, dim=1)], dim=1))
    holder = nn.ModuleList([mlp])
    zeroshard.tile(holder, loss=None, mlp=3)
    for found, wanted in zip(compute(lambda: mlp(x)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_hooks_of_a_parameter_get_one_gradient():
    model = make_language_model()
    zeroshard.tile(model, loss=3, mlp=3)
    calls = []
    for param in (model.lm_head.weight, model.model.layers[0].mlp.up_proj.weight):
        param.register_hook(lambda grad: calls.append("grad") or 2 * grad)
        param.register_post_accumulate_grad_hook(lambda param: calls.append("accumulated"))
    _, found = gradients(model, **batch())
    assert sorted(calls) == ["accumulated"] * 2 + ["grad"] * 2
    _, expected = gradients(make_language_model(), **batch())
    name = "model.layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(found[name], 2 * expected[name], rtol=1e-5, atol=1e-6)


def test_16_bit_gradients_are_summed_in_fp32():
    """256 tiles, each with a gradient that rounding would drop from a sum in bf16."""
    weight = nn.Parameter(torch.ones(1, 1, dtype=torch.bfloat16))
    x = torch.ones(1, 1024, 1, dtype=torch.bfloat16)
    theirs.TiledMLP.apply(lambda _, tile: tile @ weight, None, x, 1024, [weight]).sum().backward()
    assert weight.grad.item() == 1024


def test_autocast():
    model, tiled = make_language_model(), make_language_model()
    zeroshard.tile(tiled, loss=3, mlp=3)
    grads = []
    for each in (model, tiled):
        with torch.autocast("cpu", torch.bfloat16):
            loss = each(**batch()).loss
        loss.backward()
        grads.append({name: param.grad for name, param in each.named_parameters()})
    for name, grad in grads[0].items():
        assert grads[1][name].dtype == torch.float32
        torch.testing.assert_close(grads[1][name], grad, rtol=0.05, atol=0.01 * grad.abs().max().item(), msg=name)


def test_what_tiles_cannot_do_is_an_error():
    model = make_language_model()
    zeroshard.tile(model, loss=None, mlp=3)
    loss = model(**batch()).loss
    with pytest.raises(zeroshard.StateError, match="second derivative"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    x = torch.randn(1, 6, 24)
    with pytest.raises(zeroshard.StateError, match=r"torch\.func"):
        torch.func.grad(lambda x: model.model.layers[0].mlp(x).sum())(x)
    with pytest.raises(ValueError, match="forward-mode"), torch.autograd.forward_ad.dual_level():
        model.model.layers[0].mlp(torch.autograd.forward_ad.make_dual(x, x))
    output = model.model.layers[0].mlp(x)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.add_(1)
    with pytest.raises(zeroshard.StateError, match="changed in place"):
        output.sum().backward()
    weights = [nn.Parameter(torch.ones(())) for _ in range(2)]
    tiles = iter([0, 1, 0, 1])
    output = theirs.TiledMLP.apply(lambda _, tile: tile * weights[next(tiles)], None, x, 2, None)
    with pytest.raises(zeroshard.StateError, match="compute_params"):
        output.sum().backward()


def test_a_graph_that_is_kept():
    model = make_language_model()
    zeroshard.tile(model, loss=None, mlp=3)
    loss = model(**batch()).loss
    loss.backward(retain_graph=True)
    once = [param.grad.clone() for param in model.parameters()]
    loss.backward()
    for param, grad in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(param.grad, 2 * grad)
    zeroshard.tile(model, loss=3)
    loss = model(**batch()).loss
    loss.backward(retain_graph=True)
    with pytest.raises(zeroshard.StateError, match="compute the loss again"):
        loss.backward()


def test_frozen_models_train_their_head():
    """Hidden states without a gradient: the head gets one all the same."""
    model, tiled = make_language_model(), make_language_model()
    for each in (model, tiled):
        each.model.requires_grad_(False)
    zeroshard.tile(tiled, loss=3, mlp=3)
    _, expected = gradients(model, **batch())
    _, found = gradients(tiled, **batch())
    torch.testing.assert_close(found["lm_head.weight"], expected["lm_head.weight"], rtol=1e-5, atol=1e-6)
    assert [name for name, grad in found.items() if grad is not None] == ["lm_head.weight"]


def test_compiled_layers():
    model, tiled = make_language_model(), make_language_model()
    zeroshard.tile(tiled, loss=3, mlp=3)
    for layer in tiled.model.layers:
        layer.forward = torch.compile(layer.forward, backend="eager")
    check_same(model, tiled, **batch())


# -- DeepSpeed's names -------------------------------------------------------------------------------------------------


def test_deepspeeds_functions():
    torch.manual_seed(0)
    head = nn.Linear(8, 20)
    x, y = torch.randn(2, 7, 8, requires_grad=True), torch.randint(0, 20, (2, 7))
    mask = torch.rand(2, 7) > 0.4
    params = list(head.parameters())

    def loss_of(hidden_states, labels, mask, scale):
        losses = nn.functional.cross_entropy(head(hidden_states).flatten(0, -2), labels.flatten(), reduction="none")
        return (losses * mask.flatten()).sum() * scale

    def whole():
        return loss_of(x, y, mask, 0.5)

    def tiled():
        return theirs.sequence_tiled_compute(
            loss_of,
            7,
            3,
            {"hidden_states": x, "labels": y, "mask": mask},
            {"scale": 0.5},
            "hidden_states",
            compute_params=params,
            output_unshard_dimension=0,
            output_reduction="sum",
        )

    def fused():
        return theirs.TiledFusedLogitsLoss.apply(
            lambda self, x, y, mask: loss_of(x, y, mask, 0.5), head, x, y, mask, 4, params, "sum"
        )

    def mlp():
        return theirs.TiledMLP.apply(lambda self, x: self(x), head, x, 3, params).square().mean()

    def general():
        return theirs.sequence_tiled_compute(lambda x: head(x).square(), 7, 3, {"x": x}, {}, "x")

    for plain, others in ((whole, (tiled, fused)), (lambda: head(x).square().mean(), (mlp, general))):
        expected = torch.autograd.grad(plain() * 3, [x, *params])
        for other in others:
            torch.testing.assert_close(other(), plain())
            for found, grad in zip(torch.autograd.grad(other() * 3, [x, *params]), expected, strict=True):
                torch.testing.assert_close(found, grad, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="output_reduction"):
        theirs.TiledFusedLogitsLoss.apply(lambda *_: None, head, x, y, None, 2, params, "none")
    with pytest.raises(ValueError, match="differ in"):
        theirs.TiledFusedLogitsLoss.apply(lambda *_: None, head, x, y[:, 1:], None, 2, params, "sum")
    with pytest.raises(ValueError, match="seqlen"):
        theirs.sequence_tiled_compute(lambda x: x, 8, 2, {"x": x}, {}, "x")


# -- engines -----------------------------------------------------------------------------------------------------------


class Tutorial(nn.Module):
    """Computes its loss by DeepSpeed's functions, with all parameters of its head in a unit of their own."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([models.Residual(10) for _ in range(2)])
        self.head = nn.Linear(10, 1000, bias=False)

    def forward(self, x, y, fused):
        for block in self.blocks:
            x = x + theirs.TiledMLP.apply(lambda self, x: self(x), block, x, 3, list(block.parameters()))
        if fused:

            def loss(self, x, y):
                return nn.functional.cross_entropy(self(x), y)

            return theirs.TiledFusedLogitsLoss.apply(loss, self.head, x, y, None, 3, [self.head.weight], "mean")
        return theirs.sequence_tiled_compute(
            lambda x, y: nn.functional.cross_entropy(self.head(x).flatten(0, 1), y.flatten()),
            6,
            3,
            {"x": x, "y": y},
            {},
            "x",
            output_unshard_dimension=0,
        )


def train_in_tiles(
    stage, tiles, kind="llama", dtype="fp32", accumulation=1, how="", length=11, counts=False, directory=None
):
    """`how`: checkpoints "reentrant", "not reentrant" or "in files", layers "compiled", or "late": tiles then."""
    blocks = {"optimizer": models.adamw(), "zeroshard": {"transport": "process_group"} if counts else {}}
    if how == "in files":
        blocks["zeroshard"]["offload"] = {"activations": "nvme"}
        blocks["zero_optimization"] = {"offload_optimizer": {"device": "none", "nvme_path": directory}}
    config = models.configuration(stage, dtype, accumulation=accumulation, **blocks)
    model = models.lora_llama() if kind == "lora" else make_language_model(kind)
    if tiles and how != "late":
        zeroshard.tile(model, loss=tiles, mlp=tiles)
    if how in ("reentrant", "not reentrant", "in files"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": how == "reentrant"})
    engine, *_ = zeroshard.initialize(model=model, config=config)
    if how == "compiled":
        engine.compile(backend="eager")
    if how == "late":
        zeroshard.tile(engine, loss=tiles, mlp=tiles)
    losses, counted = [], {}

    def step(number):
        for micro in range(accumulation):
            ids = models.share(models.tokens(number, micro, 2 * world.size(), length), world.rank(), world.size())
            torch.manual_seed(number)
            loss = engine(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())

    for number in range(3):
        step(number)
    if counts:
        counted = sequences.collectives(lambda: step(3))
    return losses, engine.parameter_digest(), counted


@pytest.mark.parametrize("kind", ["llama", "gpt2", "lora"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_stages_have_one_digest(kind, accumulation):
    found = [
        world.run(2, train_in_tiles, stage=stage, tiles=3, kind=kind, accumulation=accumulation)[0]
        for stage in range(4)
    ]
    assert len({digest for _, digest, _ in found}) == 1
    plain = world.run(2, train_in_tiles, stage=3, tiles=None, kind=kind, accumulation=accumulation)[0]
    assert found[0][0] == pytest.approx(plain[0], abs=1e-5)


@functools.cache
def digest_without(length):
    return world.run(2, train_in_tiles, stage=3, tiles=3, length=length)[0][1]


@pytest.mark.parametrize("how", ["reentrant", "not reentrant", "in files", "compiled", "late"])
def test_checkpoints_and_compiled_layers_change_no_bit(how, tmp_path):
    length = 64  # so that inputs of layers are large enough to leave
    _, digest, _ = world.run(
        2, train_in_tiles, stage=3, tiles=3, how=how, length=length, directory=str(tmp_path), timeout_s=150
    )[0]
    assert digest == digest_without(length)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_16_bit(dtype):
    found = [world.run(2, train_in_tiles, stage=stage, tiles=3, dtype=dtype)[0] for stage in (1, 3)]
    assert found[0][1] == found[1][1]
    plain = world.run(2, train_in_tiles, stage=3, tiles=None, dtype=dtype)[0]
    assert found[0][0] == pytest.approx(plain[0], abs=0.05)


@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_step_has_the_collectives_of_one_without_tiles(stage, kind):
    tiled, plain = (
        world.run(2, train_in_tiles, stage=stage, tiles=tiles, kind=kind, counts=True) for tiles in (4, None)
    )
    counts = [counted for *_, counted in plain]
    assert all(counts) and [counted for *_, counted in tiled] == counts


def train_tutorial(stage, fused):
    torch.manual_seed(0)
    engine, *_ = zeroshard.initialize(
        model=Tutorial(),
        config=models.configuration(stage, optimizer=models.adamw(), zeroshard={"transport": "process_group"}),
    )

    def step(number):
        generator = torch.Generator().manual_seed(number)
        x, y = torch.randn(2, 6, 10, generator=generator), torch.randint(0, 1000, (2, 6), generator=generator)
        engine.backward(engine(x, y, fused))
        engine.step()

    for number in range(2):
        step(number)
    return engine.parameter_digest(), sequences.collectives(lambda: step(2))


@pytest.mark.parametrize("fused", [False, True])
def test_deepspeeds_functions_in_an_engine(fused):
    found = [world.run(2, train_tutorial, stage=stage, fused=fused)[0] for stage in (1, 3)]
    assert found[0][0] == found[1][0]


def train_uneven(stage):
    """Ranks differ in the lengths of their sequences, and so in their numbers of tiles; some have none."""
    model = make_language_model()
    zeroshard.tile(model, loss=4, mlp=4)
    engine, *_ = zeroshard.initialize(model=model, config=models.configuration(stage, optimizer=models.adamw()))
    for number, lengths in enumerate([(11, 2), (1, 9), (7, 7), (1, 1), (2, 12), (12, 1)]):
        ids = models.tokens(number, world.rank(), 2, max(lengths[world.rank()], 1))
        labels = ids if ids.shape[1] > 1 else None
        output = engine(input_ids=ids, labels=labels)
        engine.backward(output.loss if labels is not None else output.logits.square().mean())
        engine.step()
    return engine.parameter_digest()


def test_ranks_may_differ_in_their_numbers_of_tiles():
    found = [world.run(2, train_uneven, stage=stage) for stage in (1, 3)]
    assert len({digest for digests in found for digest in digests}) == 1


def retry(stage):
    model = make_language_model()
    zeroshard.tile(model, loss=3, mlp=3)
    engine, *_ = zeroshard.initialize(model=model, config=models.configuration(stage, optimizer=models.adamw()))
    calls = itertools.count()
    fails_at = {4, 30}
    handle = model.lm_head.register_forward_hook(lambda *_: fail_once(next(calls), fails_at))
    other = model.model.layers[1].mlp.down_proj.register_forward_hook(lambda *_: fail_once(next(calls), fails_at))
    failures = 0
    for number in range(4):
        ids = models.share(models.tokens(number, 0, 2 * world.size(), 11), world.rank(), world.size())
        while True:
            try:
                engine.backward(engine(input_ids=ids, labels=ids).loss)
                engine.step()
                break
            except RuntimeError as error:
                assert "in a tile" in str(error)
                failures += 1
    handle.remove(), other.remove()
    return failures, engine.parameter_digest()


def fail_once(call, fails_at):
    if call in fails_at:
        raise RuntimeError("in a tile")


def undisturbed(stage):
    model = make_language_model()
    zeroshard.tile(model, loss=3, mlp=3)
    engine, *_ = zeroshard.initialize(model=model, config=models.configuration(stage, optimizer=models.adamw()))
    for number in range(4):
        ids = models.share(models.tokens(number, 0, 2 * world.size(), 11), world.rank(), world.size())
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    return engine.parameter_digest()


@pytest.mark.parametrize("stage", [1, 3])
def test_a_step_is_repeated_after_an_exception_in_a_tile(stage):
    found, expected = world.run(2, retry, stage=stage), world.run(2, undisturbed, stage=stage)
    assert [failures for failures, _ in found] == [2, 2]
    assert {digest for _, digest in found} == set(expected)
