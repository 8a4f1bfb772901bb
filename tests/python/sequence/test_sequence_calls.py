"""Forwards that pieces could answer wrongly in silence: in evaluation, in generation, of inner modules, with losses."""

import time
from functools import partial

import models
import pytest
import sequences
import torch
import world
import zeroshard
from errors import message_of
from torch.nn.attention.flex_attention import create_block_mask
from zeroshard.sequence_model import _check_call as check_call


def engine_of(model=None, stage=3, **changes):
    settings = sequences.configuration(stage, world.size(), 1) | changes
    return zeroshard.initialize(model=model or sequences.llama(), config=settings)[0]


def trained(engine, steps=1):
    batches = list(zeroshard.sequence_parallel(engine, [sequences.rows("plain", 0, 4)]))
    for batch in batches[:steps]:
        engine.backward(engine(**batch).loss)
        engine.step()
    return batches[0]


def evaluated():
    """How far logits of pieces without labels are from those of whole rows, and the error of pieces without marks."""
    model, ids = sequences.llama(), models.tokens(0, 0, 2, 16)
    expected = model(input_ids=ids).logits.detach()
    engine = engine_of(model, stage=0)
    (piece, *_) = zeroshard.sequence_parallel(engine, [{"input_ids": ids}])
    engine.eval()
    with torch.no_grad():
        logits = engine(**piece).logits
        whole = engine(input_ids=ids, position_ids=torch.arange(16).expand(2, -1)).logits
        without = {key: value for key, value in piece.items() if key != "shift_labels"}
        message = message_of(lambda: engine(**without)) if world.rank() == 1 else engine(**without) and ""
    mine = expected[:, 8 * world.rank() : 8 * world.rank() + 8]
    return (logits - mine).abs().max().item(), (whole - expected).abs().max().item(), message


def test_pieces_without_labels_are_pieces_in_evaluation():
    for rank, (pieces, whole, message) in enumerate(world.run(2, evaluated)):
        assert pieces < 1e-5 and whole < 1e-5
        assert rank == 0 or "position_ids begin at 8" in message and "leave shift_labels in the batch" in message


def registered():
    """As by UlyssesSPAttentionHF: how far logits of pieces without labels are from those of whole rows."""
    zeroshard.init_distributed("cpu")
    from zeroshard.sequence_groups import make_group
    from zeroshard.sequence_model import cut_model

    model, ids = sequences.llama(), models.tokens(0, 0, 2, 16)
    expected = model(input_ids=ids).logits.detach()
    cut_model(model, make_group(2), averages_loss=False)
    part = slice(8 * world.rank(), 8 * world.rank() + 8)
    positions = torch.arange(16).expand(2, -1)
    with torch.no_grad():
        logits = model.eval()(input_ids=ids[:, part], position_ids=positions[:, part]).logits
        generated = model.generate(ids[:1, : 4 + world.rank()], max_new_tokens=2, do_sample=False, use_cache=False)
    return (logits - expected[:, part]).abs().max().item(), generated.shape[1]


def test_models_that_are_registered_take_pieces_in_evaluation():
    (first, length), (second, longer) = world.run(2, registered)
    assert max(first, second) < 1e-5
    assert (length, longer) == (6, 7)


def generated(adapted, training, use_cache):
    """Whether ranks generate after a step what each generates alone, from prompts of different lengths."""
    model = sequences.llama()
    if adapted:
        model = sequences.WRAPS["lora"](model)
    engine = engine_of(model, stage=0)
    trained(engine)
    prompt = models.tokens(1, world.rank(), 1, 4 + world.rank())
    engine.train(training)
    options = {"max_new_tokens": 4, "do_sample": False, "use_cache": use_cache}
    found = engine.module.generate(input_ids=prompt, **options)
    alone = sequences.llama()
    if adapted:
        alone = sequences.WRAPS["lora"](alone)
    alone.load_state_dict(engine.module.state_dict())
    return torch.equal(found, alone.eval().generate(input_ids=prompt, **options))


@pytest.mark.idle_ranks("adapters are small")
@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("training,use_cache", [(False, True), (False, False), (True, True), (True, False)])
def test_generation_after_a_step(adapted, training, use_cache):
    assert world.run(2, generated, adapted=adapted, training=training, use_cache=use_cache) == [True, True]


def called_inside():
    engine = engine_of()
    batch = trained(engine)
    batch = {key: batch[key] for key in ("input_ids", "position_ids")}
    return message_of(lambda: engine.module.model(**batch))


def test_parts_of_a_model_in_training():
    for message in world.run(2, called_inside):
        assert "outside of the model's forward" in message


def loss_with_items(items):
    """The loss and the gradient norm of a step whose rows have 60 labels, or the error, and the loss of a next one."""
    rows = sequences.rows("plain", 0, 4)
    engine = engine_of() if world.size() > 1 else engine_of(sequence_parallel_size=1)
    if world.size() > 1:
        (rows, *_) = zeroshard.sequence_parallel(engine, [rows])
    if items == "own":
        items = int((rows["shift_labels"] != -100).sum())
    found = []

    def step():
        loss = engine(**rows, num_items_in_batch=items).loss
        engine.backward(loss)
        engine.step()
        found.extend([loss.item(), float(engine.get_global_grad_norm())])

    return message_of(step), found


@pytest.mark.parametrize("items", [60, 240, torch.tensor(60.5)])
def test_losses_with_a_number_of_items_are_sums(items):
    ((_, expected),) = world.run(1, loss_with_items, items=items)
    for message, found in world.run(2, loss_with_items, items=items):
        assert message is None
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("items", ["own", 30])
def test_a_number_of_items_that_is_not_that_of_whole_rows(items):
    (first, _), (second, _) = world.run(2, loss_with_items, items=items)
    assert first == second
    assert ("32, 28" if items == "own" else "30, 30") in first and "60 labels" in first


def failing(in_backward):
    """The error of each rank and how long it took, where the second layer fails on rank 1 alone."""
    engine = engine_of()
    batch = trained(engine)
    if world.rank() == 1:
        mlp = engine.module.model.layers[1].mlp
        if in_backward:
            mlp.register_forward_hook(fail_later)
        else:
            mlp.register_forward_pre_hook(fail)
    begin = time.monotonic()
    try:
        engine.backward(engine(**batch).loss)
        engine(**batch)
    except Exception as error:
        return str(error), time.monotonic() - begin
    return "", 0


def fail_later(module, inputs, output):
    output.register_hook(fail)


def fail(*_):
    raise torch.OutOfMemoryError("no memory is left")


@pytest.mark.parametrize("in_backward", [False, True])
def test_a_pass_that_fails_on_one_rank_ends_on_all(in_backward):
    (first, waited), (second, _) = world.run(2, partial(failing, in_backward), timeout_s=60)
    assert "no memory is left" in first and "rank 1" in first and waited < 20
    assert "no memory is left" in second


@pytest.mark.parametrize("shape", [(2, 8), (2, 1, 8, 8), (2, 1, 16, 8)])
def test_masks_of_pieces(shape):
    query = torch.zeros(2, 2, 8, 3)
    check = lambda mask: check_call(torch.nn.Identity(), query, query, mask, 16, {"is_causal": True})  # noqa: E731
    assert f"the shape {shape}" in message_of(lambda: check(torch.ones(shape)))
    for whole in (torch.ones(2, 16), torch.ones(2, 1, 16, 16), create_block_mask(causal, 2, None, 16, 16, "cpu"), None):
        assert message_of(lambda mask=whole: check(mask)) is None
    assert "(2, 1, 8, 8)" in message_of(lambda: check(create_block_mask(causal, 2, None, 8, 8, "cpu")))


def causal(batch, head, query, key):
    return query >= key
