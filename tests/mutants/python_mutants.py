"""What the Python front could forget to save or to restore."""

from mutant import Mutant

_CHECKPOINT = "python/zeroshard/checkpoint.py"
_ONE, _TWO = (f"test_a_resumed_run_has_the_same_bits_at_every_stage[{ranks}]" for ranks in (1, 2))
_SKIPPED = "test_a_resumed_run_keeps_count_of_skipped_steps_and_the_loss_scale[0]"
_SETTINGS, _OWN_COUNTS = (
    f"test_a_resumed_run_keeps_changed_settings_and_the_own_optimizers_counts[{case}]" for case in ("1-False", "1-True")
)
_RESUMED_OUTSIDE = "test_a_resumed_run_with_other_optimizers[none]"

_TABLE = [
    ("python-no-random-state", "        _restore_random(engine, loaded.rank_states)\n", "", _ONE),
    ("python-random-state-of-rank-0", "rank_states[rank % saved_ranks]", "rank_states[0]", _TWO),
    ("python-no-random-module", 'random.setstate(state["python"])', "pass", _ONE),
    ("python-no-torch-random", 'torch.set_rng_state(_from_text(state["torch"]))', "pass", _ONE),
    ("python-no-lr-schedule", '_restore(engine.lr_scheduler, state.get("lr_scheduler"))', "pass", _ONE),
    ("python-no-step-count", '("global_steps", "micro_steps"', '("micro_steps"', _ONE),
    ("python-no-skipped-steps", '"global_samples", "skipped_steps"):', '"global_samples"):', _SKIPPED),
    ("python-no-param-groups", "        group.update(saved)\n", "        pass\n", _SETTINGS),
    # The core's part: moments, each parameter's count of steps, the loss scale.
    ("python-no-optimizer-states", "        optimizer=with_optimizer,\n", "        optimizer=False,\n", _ONE),
    ("python-no-loss-scale", "        optimizer=with_optimizer,\n", "        optimizer=False,\n", _SKIPPED),
    ("python-buffers-of-rank-0", "mine if mine in own else (info.name, _BUFFER)", "(info.name, _BUFFER)", _TWO),
    (
        "python-no-scalars-of-own-optimizer",
        "        engine._external.state[param].update(_own_copies(scalars.get(part.param, {})))\n",
        "        pass\n",
        _OWN_COUNTS,
    ),
    (
        "python-no-states-of-own-optimizer",
        "        engine._external.state[param][kind] = tensor\n",
        "        pass\n",
        _RESUMED_OUTSIDE,
    ),
    (
        "python-no-data-position",
        '_restore(engine.training_dataloader, state.get("data"))',
        "pass",
        "test_no_sample_is_lost_or_repeated_when_an_epoch_goes_on[2]",
    ),
]

MUTANTS = [
    Mutant(name, _CHECKPOINT, old, new, "python", f"tests/python/test_checkpoint.py::{test}")
    for name, old, new, test in _TABLE
]
