"""What the counts of an engine, and what goes on with them from a checkpoint, could get wrong."""

from mutant import Mutant

_PROGRESS, _RANDOM = "src/engine/step_progress.cpp", "src/checkpoint_torch/random_state.cpp"

_TABLE = [
    (
        "engine-micro-steps-as-saved",
        _PROGRESS,
        "  micro_steps = global_steps * batch.accumulation;\n",
        "",
        "StepProgress.GoesOnWhereAStepBegins",
    ),
    (
        "engine-discarded-micro-batches-count",
        _PROGRESS,
        "  counts_.micro_steps -= micro_batches_;\n",
        "",
        "StepProgress.WhatIsDiscardedCountsNoMore",
    ),
    (
        "engine-random-state-of-rank-0",
        _RANDOM,
        "if (i == size_t(rank) % rank_states.size()) own",
        "if (i == 0) own",
        "RandomState.ARankGoesOnWithItsOwnNumbers",
    ),
    (
        "engine-new-ranks-draw-the-same",
        _RANDOM,
        "at::manual_seed(uint64_t(seed));",
        "",
        "RandomState.ARankThatWasNotThereDrawsItsOwn",
    ),
]

MUTANTS = [
    *(
        Mutant(name, file, old, new, "checkpoint_torch" if file == _RANDOM else "engine", test)
        for name, file, old, new, test in _TABLE
    ),
    Mutant(
        "unsynced-gradients-stay",
        "src/engine/engine.cpp",
        "ends_pass = is_unsynced || pass.progress().has_open_gradients();",
        "ends_pass = pass.progress().has_open_gradients();",
        "world",
        "Accumulation.AStepTakesWhatNoSyncHasLeft",
    ),
]
