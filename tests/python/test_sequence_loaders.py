"""Loaders of engines with and without sequence groups in one process, and loaders that fail on one rank."""

import warnings

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
