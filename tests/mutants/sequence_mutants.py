"""What sequence parallelism could get wrong."""

from mutant import Mutant

_CORE = "src/sequence/sequence_group.cpp"
_MODEL, _ROWS = "python/zeroshard/sequence_model.py", "python/zeroshard/sequence_rows.py"
_LOSSES = "tests/python/sequence/test_sequence_parallel.py::test_losses_are_those_of_whole_rows[2-2]"
_REFUSED, _CALLS = "tests/python/sequence/test_sequence_refusals.py", "tests/python/sequence/test_sequence_calls.py"

_TABLE = [
    (
        "sequence-copies-summed-in-16-bits",
        _CORE,
        "is_narrow ? each.select(2, i).to(at::kFloat) : each.select(2, i)",
        "each.select(2, is_narrow ? i : i)",
        "sequence",
        "SequenceGroup.CopiesOfAHeadAreSummedInRankOrder",
    ),
    (
        "sequence-mean-without-weights",
        _CORE,
        "at::zeros_like(losses)) * counts).sum() / total",
        "at::zeros_like(losses))).sum() / losses.numel()",
        "sequence",
        "SequenceGroup.TheMeanIsWeightedAndARankWithoutWordsCountsNothing",
    ),
    (
        "sequence-packed-by-pieces",
        _MODEL,
        '            given["position_ids"] = forward.positions\n',
        '            given["position_ids"] = None\n',
        "python",
        _LOSSES,
    ),
    (
        "sequence-padding-forgotten",
        _MODEL,
        '            given["attention_mask"] = forward.padding\n',
        '            given["attention_mask"] = None\n',
        "python",
        _LOSSES,
    ),
    (
        "sequence-labels-shifted-in-pieces",
        _ROWS,
        "pad(labels[:, 1:], (0, 1), value=-100)",
        "pad(labels[:, 1:], (0, 1), value=0)",
        "python",
        _LOSSES,
    ),
    (
        "sequence-fill-has-labels",
        _ROWS,
        "_FILLED_WITH.get(key, 0)",
        "0",
        "python",
        "tests/python/sequence/test_sequence_parallel.py::test_rows_that_the_size_does_not_divide[17]",
    ),
    (
        "sequence-inputs-not-compared",
        _MODEL,
        "len({tuple(numbers[:6]) for numbers in told}) > 1",
        "False",
        "python",
        f"{_REFUSED}::test_rows[a mask on one rank]",
    ),
    (
        "sequence-generates-with-pieces",
        _MODEL,
        'model.training or (self._in_evaluation and kwargs.get("shift_labels") is not None)',
        "True",
        "python",
        f"{_REFUSED}::test_other_models_and_generation_have_whole_rows",
    ),
    (
        "sequence-frequencies-by-pieces",
        _MODEL,
        "_running[-1].positions.max()",
        "piece.max()",
        "python",
        _LOSSES,
    ),
    (
        "sequence-mean-of-sums",
        _MODEL,
        "torch.ones((), device=loss.device)) * self.group.size",
        "torch.ones((), device=loss.device))",
        "python",
        f"{_CALLS}::test_losses_with_a_number_of_items_are_sums[60]",
    ),
]

MUTANTS = [Mutant(*row) for row in _TABLE]
