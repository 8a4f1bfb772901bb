"""Models that UlyssesSPAttentionHF registers before an engine is made for them, by name or before they are wrapped."""

import sys

import pytest
import sequences
import torch
import world
import zeroshard
from zeroshard.compat import alias
from zeroshard.compat.ulysses import UlyssesSPAttentionHF
from zeroshard.sequence_model import cut_of


def register(model, **changes):
    sys.path.insert(0, alias.PATH)
    zeroshard.init_distributed()
    return UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model,
        core_attn_implementation="sdpa",
        sequence_parallel_size=2,
        micro_batch_size=1,
        seq_length=16,
        **changes,
    )


def made(model, size=None, **arguments):
    config = sequences.configuration(0, size, 1)
    if size is None:
        del config["sequence_parallel_size"]
    return zeroshard.initialize(model=model, config=config, **arguments)[0]


def losses(engine, model):
    """Of steps over pieces, by the labels of all ranks; the model returns the loss of its own piece."""
    told = []
    for batch in zeroshard.sequence_parallel(engine, [sequences.rows("plain", step, 4) for step in range(2)]):
        count = (batch["shift_labels"] != -100).sum()
        own = engine(**batch, labels=batch["shift_labels"]).loss
        loss = cut_of(model).group.core.mean(own, count) if not cut_of(model).averages_loss else own
        engine.backward(loss)
        engine.step()
        told.append(loss.item())
    return told


def expected():
    engine = made(sequences.llama(), 2)
    return losses(engine, engine.module)


def by_name(folder):
    right = expected()
    register(folder)
    model = sequences.llama()
    engine = made(model)
    registered, told = cut_of(model), losses(engine, model)
    other, native = sequences.llama(), sequences.llama()
    made(other)  # the registration is used up
    made(native, 2)
    averages = [registered.averages_loss, cut_of(native).averages_loss]
    return right, told, cut_of(other) is None, averages


def test_a_registration_by_name_cuts_the_next_model_and_no_other(tmp_path):
    sequences.llama().save_pretrained(tmp_path)
    for right, told, is_whole, averages in world.run(2, by_name, folder=str(tmp_path)):
        assert told == right
        assert (is_whole, averages) == (True, [False, True])


def with_mpu():
    mpu = register(sequences.llama())
    model = sequences.llama()
    made(model, mpu=mpu)
    return cut_of(model).averages_loss


def test_the_mpu_cuts_another_model_as_it_was_registered():
    assert world.run(2, with_mpu) == [False, False]


def adapted():
    """Trained with the cut of the base model, and of the wrapped one."""
    told = []
    for registers in (False, True):
        torch.manual_seed(1)
        model = sequences.llama()
        if registers:
            register(model)
        model = sequences.WRAPS["lora"](model)
        engine = made(model, None if registers else 2)
        told.append([cut_of(model).group.size, losses(engine, model)])
    return told


@pytest.mark.idle_ranks("adapters are small")
def test_a_model_that_is_registered_and_then_adapted():
    for right, told in world.run(2, adapted):
        assert told == right


def without_groups():
    model = sequences.llama()
    made(model, 2)
    adapted = sequences.WRAPS["lora"](model)
    engine = made(adapted, 1)
    batch = sequences.rows("plain", 0, 2)
    return cut_of(model) is None, cut_of(adapted) is None, engine(**batch).loss.item()


@pytest.mark.idle_ranks("adapters are small")
def test_an_engine_without_groups_leaves_an_adapted_model_whole():
    (first, second) = world.run(2, without_groups)
    assert first == second == [True, True, first[2]]


def two_engines():
    first, second = sequences.llama(), sequences.llama()
    config = sequences.configuration(0, 2, 1)
    zeroshard.initialize(model=first, config=config | {"zeroshard": {"timeout_s": 100}})
    core = cut_of(first).group.core
    zeroshard.initialize(model=second, config=config | {"zeroshard": {"timeout_s": 200}})
    groups = [cut_of(model).group for model in (first, second)]
    return [group.settings.timeout_ms for group in groups], groups[0].core is core, groups[1].core is core


def test_each_engine_has_its_own_settings_for_its_group():
    assert world.run(2, two_engines) == [[[100000, 200000], True, False]] * 2


def gathered():
    """The gradient of a sum in which each rank weighs the parts of all ranks differently."""
    mpu, rank = register(sequences.llama()), torch.distributed.get_rank()
    told = []
    for all_gather in (torch.distributed.nn.all_gather, torch.distributed.nn.functional.all_gather):
        own = torch.tensor([float(rank + 1)], requires_grad=True)
        parts = all_gather(own, group=mpu.get_sequence_parallel_group())
        (parts[0] * (rank + 1) + parts[1] * (rank + 3)).sum().backward()
        told.append([[part.item() for part in parts], own.grad.item()])
    return told


def test_losses_are_gathered_by_both_names():
    """In the second group torch's own has no backward over Gloo."""
    told = world.run(4, gathered)
    for rank, one in enumerate(told):
        low = 2 * (rank // 2) + 1  # of the group's first rank
        sums = [2 * low + 1, 2 * low + 5]
        assert one == [[[low, low + 1], sums[rank % 2]]] * 2
