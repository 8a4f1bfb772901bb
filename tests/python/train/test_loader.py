"""The loader's position when an iteration is left before its end."""

import itertools

import torch
from torch.utils.data import IterableDataset
from zeroshard.loader import Loader

SAMPLES, SIZE = 10, 2


def make_loader():
    return Loader(list(range(SAMPLES)), SIZE, collate_fn=None, drop_last=False)


def epochs(count):
    """The batches of undisturbed epochs."""
    loader = make_loader()
    return [[batch.tolist() for batch in loader] for _ in range(count)]


def test_iterating_again_begins_the_next_epoch():
    loader, expected = make_loader(), epochs(4)
    assert len({tuple(map(tuple, batches)) for batches in expected}) == 4, "epochs have orders of their own"
    assert [next(iter(loader)).tolist() for _ in range(4)] == [batches[0] for batches in expected]
    loader, seen = make_loader(), []
    for stop in (3, 5, 1):  # within an epoch, at its last batch, at its first
        seen.append([batch.tolist() for batch in itertools.islice(loader, stop)])
    assert seen == [expected[0][:3], expected[1], expected[2][:1]]
    assert [batch.tolist() for batch in loader] == expected[3]


def test_an_iterator_that_gave_nothing_begins_no_epoch():
    loader, expected = make_loader(), epochs(1)
    unused = [iter(loader), iter(loader)]
    assert [batch.tolist() for batch in loader] == expected[0]
    del unused


def test_a_saved_position_is_gone_on_with_once():
    loader, expected = make_loader(), epochs(2)
    assert len(list(itertools.islice(loader, 2))) == 2
    state, other = loader.state_dict(), make_loader()
    other.load_state_dict(state)
    assert [batch.tolist() for batch in itertools.islice(other, 2)] == expected[0][2:4]
    assert other.state_dict() == {"epoch": 0, "consumed": 4 * SIZE}
    assert next(iter(other)).tolist() == expected[1][0]
    assert other.state_dict() == {"epoch": 1, "consumed": SIZE}


def test_an_iterator_ends_when_a_later_one_has_begun():
    loader, expected = make_loader(), epochs(2)
    older = iter(loader)
    assert next(older).tolist() == expected[0][0]
    later = iter(loader)
    assert next(later).tolist() == expected[1][0]
    assert list(older) == []
    assert loader.state_dict() == {"epoch": 1, "consumed": SIZE}
    assert [batch.tolist() for batch in later] == expected[1][1:]
    assert loader.state_dict() == {"epoch": 2, "consumed": 0}


def test_an_iterator_ends_when_a_position_is_loaded():
    loader, expected = make_loader(), epochs(1)
    older = iter(loader)
    next(older)
    state = loader.state_dict()
    next(older)
    loader.load_state_dict(state)
    assert list(older) == []
    assert [batch.tolist() for batch in loader] == expected[0][1:]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(SAMPLES))


def test_a_stream_begins_again():
    loader = Loader(Stream(), SIZE, collate_fn=None, drop_last=False)
    assert [next(iter(loader)).tolist() for _ in range(2)] == [[0, 1], [0, 1]]
    assert loader.state_dict()["epoch"] == 1
    assert torch.cat(list(loader)).tolist() == list(range(SAMPLES))


def test_len_is_that_of_the_iteration_that_runs_or_comes_next():
    loader = make_loader()
    assert len(loader) == SAMPLES // SIZE
    list(itertools.islice(loader, 2))
    state, other = loader.state_dict(), make_loader()
    assert len(loader) == SAMPLES // SIZE  # the next epoch
    other.load_state_dict(state)
    for epoch, expected in enumerate((3, 5, 5)):
        assert len(other) == expected
        assert [len(other) for _ in other] == [expected] * expected, epoch
    other.load_state_dict(state)
    next(iter(other))
    assert len(other) == 5 and len(list(other)) == 5  # that of the saved position was left
    other.load_state_dict({"epoch": 0, "consumed": SAMPLES})
    assert len(other) == 0 and list(other) == [] and len(other) == 5


def test_len_without_the_last_batch():
    loader = Loader(list(range(SAMPLES)), 3, collate_fn=None, drop_last=True)
    loader.load_state_dict({"epoch": 0, "consumed": 2})
    assert len(loader) == 2 == len(list(loader))
    assert len(loader) == 3 == len(list(loader))
