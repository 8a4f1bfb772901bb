"""Models, rows and sizes that sequence parallelism cannot train with: one error on all ranks, before a collective."""

import models
import pytest
import sequences
import torch
import world
import zeroshard
from errors import message_of


def with_layer(make):
    model = sequences.llama()
    model.model.layers[1].add_module("extra", make())
    return model


def with_layer_types():
    model = sequences.llama()
    model.config.layer_types = ["linear_attention", "full_attention"]
    return model


def with_temperature():
    model = sequences.llama()
    model.config.attn_temperature_tuning = True
    return model


def with_routers():
    model = sequences.llama()
    model.config.output_router_logits = True
    return model


def with_prompt():
    from peft import PromptTuningConfig, get_peft_model

    return get_peft_model(sequences.llama(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


REFUSED_MODELS = {
    "heads": (
        lambda: sequences.llama(num_attention_heads=3, num_key_value_heads=3),
        ["3 attention heads", "heads: 1, 3"],
    ),
    "key-value heads": (
        lambda: sequences.llama(num_attention_heads=6, hidden=24, num_key_value_heads=3),
        ["6 attention heads and 3 key-value heads", "fit the heads: 1, 3, 6", "divide the 2 ranks: 1"],
    ),
    "eager": (models.tiny_llama, ["'eager'", "attn_implementation='sdpa'"]),
    "dropout": (lambda: sequences.llama(attention_dropout=0.1), ["attention_dropout of LlamaForCausalLM is 0.1"]),
    "convolution": (lambda: with_layer(lambda: torch.nn.Conv1d(2, 2, 2)), ["model.layers.1.extra (Conv1d)"]),
    "recurrence": (lambda: with_layer(lambda: torch.nn.LSTM(2, 2)), ["model.layers.1.extra (LSTM)"]),
    "batch norm": (lambda: with_layer(lambda: torch.nn.BatchNorm1d(2)), ["model.layers.1.extra (BatchNorm1d)"]),
    "linear attention": (with_layer_types, ["layers of type linear_attention"]),
    "dynamic rope": (
        lambda: sequences.llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}),
        ["rope_type of LlamaForCausalLM is 'dynamic'", "'yarn'"],
    ),
    "longrope": (
        lambda: sequences.longrope(7),
        ["original_max_position_embeddings of Phi3ForCausalLM is 7, which 2 ranks do not divide"],
    ),
    "temperature": (with_temperature, ["attn_temperature_tuning=False"]),
    "routers": (with_routers, ["output_router_logits=False"]),
    "prompt tuning": (with_prompt, ["the adapter 'default'", "PromptTuningConfig", "LoRA"]),
    "no transformer": (lambda: models.Stack(), ["Stack has no configuration of transformers"]),
}


def refused_model(name):
    make, _ = REFUSED_MODELS[name]
    settings = sequences.configuration(3, 2, 1)
    return message_of(lambda: zeroshard.initialize(model=make(), config=settings))


@pytest.mark.parametrize("name", REFUSED_MODELS)
def test_models(name):
    _, parts = REFUSED_MODELS[name]
    first, second = world.run(2, refused_model, name=name)
    assert first == second
    assert all(part in first for part in parts), first


def refused_size():
    return message_of(lambda: zeroshard.initialize(model=sequences.llama(), config=sequences.configuration(3, 3, 1)))


def test_a_size_that_does_not_divide_the_ranks():
    for message in world.run(2, refused_size):
        assert "sequence_parallel_size = 3: does not divide the 2 ranks: sizes that do are 1, 2" in message


def refused_rows(name):
    """Each rank's error for a wrong batch, and the loss of a right one afterwards."""
    engine, *_ = zeroshard.initialize(model=sequences.llama(), config=sequences.configuration(3, 2, 1))
    whole, rank = sequences.rows("plain", 0, 4), models.world.rank()
    (good, _) = zeroshard.sequence_parallel(engine, [whole])
    bad = dict(good)
    loaded = dict(whole)
    if name == "positions":  # on one rank alone
        bad = {key: value for key, value in good.items() if key != "position_ids" or rank == 0}
    elif name == "lengths":
        bad = {key: value[:, : 8 - rank] for key, value in good.items()}
    elif name == "rows":
        bad = {key: value[: 4 - rank] for key, value in good.items()}
    elif name == "a mask on one rank":
        bad = good | ({"attention_mask": torch.ones_like(good["input_ids"])} if rank == 0 else {})
    elif name == "a dict as mask":
        bad = good | ({"attention_mask": {"full_attention": None}} if rank == 0 else {})
    elif name == "a list as positions":
        bad = good | ({"position_ids": [0, 1]} if rank == 0 else {})
    elif name == "another ignored label":
        bad = good | {"ignore_index": 0}
    elif name == "routers":
        bad = good | {"output_router_logits": True}
    elif name == "labels of rows without":
        (marked, _) = zeroshard.sequence_parallel(engine, [{"input_ids": whole["input_ids"]}])
        bad = marked | {"labels": marked["input_ids"]}
    elif name == "labels":
        bad = {key: value for key, value in good.items() if key != "shift_labels"} | {"labels": good["input_ids"]}
    elif name == "short":
        loaded = {key: value[:, :1] for key, value in whole.items()}
    elif name == "packed":
        loaded = whole | {"cu_seq_lens_q": torch.tensor([0, 5, 16])}
    elif name == "other shapes" and rank == 1:
        loaded = whole | {"weights": torch.ones(4, 3)}
    if name in ("short", "packed", "other shapes"):
        message = message_of(lambda: list(zeroshard.sequence_parallel(engine, [loaded])))
    else:
        message = message_of(lambda: engine(**bad))
    loss = engine(**good).loss
    engine.backward(loss)
    engine.step()
    return message, loss.item()


ROWS = {
    "positions": ["forward needs position_ids", "rank 1"],
    "lengths": ["different inputs", "rank 0: 4 x 8; rank 1: 4 x 7"],
    "rows": ["different inputs", "rank 0: 4 x 8; rank 1: 3 x 8"],
    "a mask on one rank": ["different inputs", "rank(s) [0] have an attention_mask"],
    "a dict as mask": ["attention_mask must be a tensor", "rank 0"],
    "a list as positions": ["forward needs position_ids", "rank 0"],
    "another ignored label": ["ignore_index is given", "-100"],
    "routers": ["output_router_logits is given"],
    "labels of rows without": ["labels without shift_labels", "zeroshard.sequence_parallel(model, loader)"],
    "labels": ["labels without shift_labels", "zeroshard.sequence_parallel(model, loader)"],
    "short": ["rows of 1 words are shorter than the 2 ranks"],
    "packed": ["packed by cu_seq_lens_q: give position_ids"],
    "other shapes": ["weights has the shape (4, 3)", "4 x 16", "rank 1"],
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name):
    (first, loss), (second, other) = world.run(2, refused_rows, name=name)
    assert first == second
    assert all(part in first for part in ROWS[name]), first
    assert loss == other


def refused_calls():
    engine, *_ = zeroshard.initialize(model=sequences.llama(), config=sequences.configuration(3, 1, 2))
    without_size = message_of(lambda: zeroshard.sequence_parallel(engine, []))
    mesh = message_of(
        lambda: zeroshard.initialize(model=sequences.llama(), config=sequences.configuration(3, 2, 1), mpu=object())
    )
    return without_size, mesh


def test_calls():
    for without_size, mesh in world.run(2, refused_calls):
        assert '"sequence_parallel_size"' in without_size
        assert "mpu and mesh_param are not supported" in mesh


def refused_graphs():
    """The errors of whole graphs: of the engine's, and of a part that the caller has compiled."""
    engine, *_ = zeroshard.initialize(model=sequences.llama(), config=sequences.configuration(3, 2, 1))
    by_engine = message_of(lambda: engine.compile(backend="eager", compile_kwargs={"fullgraph": True}))
    engine.module.model.layers[1].self_attn.compile(backend="eager", fullgraph=True)
    (batch, _) = zeroshard.sequence_parallel(engine, [sequences.rows("plain", 0, 4)])
    return by_engine, message_of(lambda: engine(**batch))


def test_whole_graphs():
    for by_engine, by_caller in world.run(2, refused_graphs):
        assert "fullgraph=True does not go with sequence_parallel_size > 1" in by_engine
        assert "compile without fullgraph=True" in by_caller


def other_model():
    """Its attention stays what it is: nothing is exchanged for a model that is not cut."""
    torch.manual_seed(models.world.rank())
    reference = sequences.llama(num_key_value_heads=1)
    ids = models.tokens(0, 0, 2, 7 + models.world.rank())
    before = reference(input_ids=ids).logits
    model, prompt = sequences.llama(), models.tokens(1, 0, 2, 5)
    expected = [model(input_ids=ids).logits, model.generate(prompt, max_new_tokens=6, do_sample=False)]
    engine, *_ = zeroshard.initialize(model=model, config=sequences.configuration(3, 2, 1))
    same = torch.equal(before, reference(input_ids=ids).logits)
    engine.eval()
    with torch.no_grad():
        logits = engine(input_ids=ids).logits
    generated = engine.module.generate(prompt, max_new_tokens=6, do_sample=False)
    return same, torch.equal(logits, expected[0]) and torch.equal(generated, expected[1])


def test_other_models_and_generation_have_whole_rows():
    assert world.run(2, other_model) == [[True, True], [True, True]]
