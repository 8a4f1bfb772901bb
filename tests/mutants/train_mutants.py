"""What `zeroshard train` and `zeroshard generate` could get wrong."""

from mutant import Mutant

_TRAINER = "lm/train/trainer.cpp"
_PARITY = "Training.TheLossIsTheMeanOverTheTargetsOfAllRanks"
_STAGES = "Training.StagesAndRecomputationGiveTheSameWeights"
_RESUME = "Training.AnInterruptedRunGoesOnWhereItWas"

_TABLE = [
    (
        "train-mean-of-micro-batches",
        _TRAINER,
        "engine_.backward(loss * weight);",
        "engine_.backward(loss / double(batch.num_targets));",
        _PARITY,
    ),
    (
        "train-rows-by-rank",
        _TRAINER,
        "(micro * row_groups() + row_group()) * size",
        "(row_group() * config_.grad_accumulation_steps + micro) * size + row_group()",
        _PARITY,
    ),
    (
        "train-due-evaluation-left-out",
        _TRAINER,
        "bool goes_on = evaluate_if_due();",
        "bool goes_on = true;",
        "InterruptedTraining.ASignalAtAnyStepChangesNoEvaluation",
    ),
    ("train-position-lost", _TRAINER, 'state.at("rows").get<int64_t>()', "0", _RESUME),
    (
        "train-other-data-accepted",
        _TRAINER,
        'client.at("data") == training_->digest()',
        'client.contains("data")',
        _RESUME,
    ),
    (
        "train-recompute-without-parameters",
        "lm/ops/recompute.cpp",
        "    torch::autograd::backward({output}, {gradients.front()});\n",
        "    torch::autograd::backward({output}, {gradients.front()}, false, false, {input});\n",
        _STAGES,
    ),
    (
        "train-shards-read-from-the-start",
        "src/unit/unit.cpp",
        "now.begin - param.begin, now.end - param.begin, piece",
        "now.begin - needed.begin, now.end - needed.begin, piece",
        _STAGES,
    ),
    (
        "train-initial-values-from-the-block",
        "lm/train/models/causal_lm.cpp",
        "values + (at - first), values + (stop - first)",
        "values, values + (stop - at)",
        _STAGES,
    ),
    (
        "train-tied-drawn-twice",
        "lm/train/models/causal_lm.cpp",
        "if (drawn.insert(item.value().unsafeGetTensorImpl()).second)",
        "if (drawn.insert(&item).second)",
        "Training.FrozenParametersStay",
    ),
    (
        "train-patience-ignored",
        _TRAINER,
        "without_progress >= options_.patience",
        "without_progress > options_.patience",
        "Training.EndsEarlyWithoutProgress",
    ),
    (
        "train-evaluation-of-nothing-is-the-best",
        _TRAINER,
        "if (evaluation.targets > 0) {",
        "if (evaluation.targets >= 0) {",
        "Targets.AnEvaluationWithoutAnyTellsNoLoss",
    ),
    (
        "train-nothing-to-learn-accepted",
        "lm/train/run_data.cpp",
        "ZS_CHECK(has_targets(training, rows), ",
        "ZS_CHECK(true, ",
        "Targets.DataWithoutAnyAreAnError",
    ),
    (
        "train-nothing-applied-accepted",
        _TRAINER,
        "engine_.skipped_in_a_row() < engine_.steps()) return;",
        "true) return;",
        "Steps.ARunInWhichNoneWasAppliedIsAnError",
    ),
]

MUTANTS = [Mutant(name, file, old, new, "train", test) for name, file, old, new, test in _TABLE]
