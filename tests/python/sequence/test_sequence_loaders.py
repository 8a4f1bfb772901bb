"""Loaders of engines with and without sequence groups in one process, and loaders that fail on one rank."""

import itertools
import time
import warnings

import models
import sequences
import torch
import world
import zeroshard


class Rows(torch.utils.data.Dataset):
    """16 rows; the first word tells which."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        ids = torch.arange(index, index + 8)
        return {"input_ids": ids, "labels": ids}


class Stream(torch.utils.data.IterableDataset):
    """What every rank reads whole."""

    def __iter__(self):
        rows = Rows()
        return iter([rows[index] for index in range(4)])


def made(size, data=None, model=None, **arguments):
    return zeroshard.initialize(
        model=sequences.llama() if model is None else model,
        config=sequences.configuration(1, size, 1),
        training_data=data,
        **arguments,
    )


def first_words(loader):
    return sorted(int(row[0]) for batch in loader for row in batch["input_ids"])


def loaders_of_both():
    _, _, early, _ = made(2, Rows())
    _, _, late, _ = made(1, Rows())
    words, length = first_words(late), len(late)
    return words, length, first_words(early), early.state_dict()


def test_an_engine_without_groups_deals_rows_to_all_ranks():
    (first, length, *shared), (second, other_length, *other_shared) = world.run(2, loaders_of_both)
    assert sorted(first + second) == list(range(16))
    assert len(first) == 8 and (length, other_length) == (4, 4)
    assert shared[0] == list(range(16)) and other_shared[0] == [word + 4 for word in shared[0]]
    assert shared[1] == other_shared[1] == {"epoch": 1, "consumed": 0}


def warned_of():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made(2, Stream())
    return [str(each.message) for each in caught if "IterableDataset" in str(each.message)]


def test_a_stream_that_each_rank_of_a_group_reads_is_warned_of():
    first, second = world.run(2, warned_of)
    assert len(first) == 1 and "every rank iterates over all of it" in first[0]
    assert second == []


class OneFails:
    """Rank 1 alone fails at its second batch, in the loader or with a batch that is no dict of tensors."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 2

    def __iter__(self):
        yield sequences.rows("plain", 0, 2)
        if models.world.rank() == 1:
            if self.error == "pickle":
                yield sequences.rows("plain", 1, 2) | {"more": lambda: None}
            raise OSError("the disk is gone") if self.error == "loader" else KeyError("label")
        yield sequences.rows("plain", 1, 2)


def errors_of_one_rank():
    engine, *_ = made(2)
    messages = []
    for error in ("loader", "key", "pickle"):
        pieces, began = [], time.monotonic()
        try:
            for batch in zeroshard.sequence_parallel(engine, OneFails(error)):
                pieces.append(batch)
        except Exception as raised:
            messages.append([type(raised).__name__, str(raised), len(pieces), time.monotonic() - began < 20])
    return messages


def test_a_loader_that_fails_on_one_rank_alone_fails_on_all():
    first, second = world.run(2, errors_of_one_rank)
    told = "sequence parallelism: the loader failed with OSError: the disk is gone (rank 1)"
    assert first[0] == ["ValueError", told, 2, True]
    assert second[0] == ["OSError", "the disk is gone", 2, True]
    assert second[1][0] == "KeyError" and "KeyError: 'label' (rank 1" in first[1][1]
    assert "(rank 1" in first[2][1] and second[2][2:] == [2, True]


def loaders_of_the_engine(folder):
    same = []
    for data in (Rows(), Stream()):
        engine, _, loader, _ = made(2, data)
        batch = next(iter(engine.training_dataloader))
        same += [engine.training_dataloader is loader, batch["shift_labels"].shape[1] == 4]
    engine, _, loader, _ = made(2, Rows())
    before = first_words(itertools.islice(loader, 1))
    engine.save_checkpoint(folder, tag="a")
    after = first_words(loader)  # the next epoch, as the last was left
    engine.load_checkpoint(folder, tag="a")
    rest = first_words(engine.training_dataloader)
    return same, sorted(before + rest) == after, len(rest)


def test_the_loader_of_an_engine_is_the_one_that_initialize_returns(tmp_path):
    assert world.run(2, loaders_of_the_engine, folder=str(tmp_path)) == [[[True] * 4, True, 12]] * 2


class RandomRows(Rows):
    """Rows whose words depend on the random numbers of the process, each followed by the next number."""

    def __getitem__(self, index):
        ids = torch.randint(40, (1,)) + torch.arange(8)
        return {"input_ids": ids, "labels": ids}


def pieces_of_random_rows():
    _, _, loader, _ = made(2, RandomRows())
    torch.manual_seed(models.world.rank())
    return [row.tolist() for batch in loader for row in batch["input_ids"]], loader.state_dict()


def test_pieces_are_of_the_same_row_where_ranks_draw_different_numbers():
    (first, state), (second, other) = world.run(2, pieces_of_random_rows)
    assert [row[-1] + 1 for row in first] == [row[0] for row in second]
    assert len(first) == 16 and state == other == {"epoch": 1, "consumed": 0}


class OneRowFails(Rows):
    def __getitem__(self, index):
        if index == 9 and models.world.rank() == 1:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


def errors_of_one_rank_that_shares():
    _, _, loader, _ = made(2, OneRowFails())
    try:
        list(loader)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_shared_rows_that_fail_on_one_rank_alone_fail_on_all():
    first, second = world.run(2, errors_of_one_rank_that_shares)
    assert "OSError: the disk is gone (rank 1" in first
    assert second == "OSError: the disk is gone"
