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
    ("python-no-random-state", "        _restore_random(run, loaded.rank_states)\n", "", _ONE),
    ("python-random-state-of-rank-0", "rank_states[run.rank % len(rank_states)]", "rank_states[0]", _TWO),
    ("python-no-random-module", 'random.setstate(state["python"])', "pass", _ONE),
    ("python-no-torch-random", "_C.restore_random_state(rank_states, run.rank)", "None", _ONE),
    ("python-no-lr-schedule", '_restore(run.lr_scheduler, state.get("lr_scheduler"))', "pass", _ONE),
    ("python-no-counts", "run.core.restore_progress(counts, step=loaded.step)", "pass", _SKIPPED),
    (
        "python-no-param-groups",
        '    take_settings(run.optimizer.param_groups, state["param_groups"])\n',
        "    pass\n",
        _SETTINGS,
    ),
    # The core's part: moments, each parameter's count of steps, the loss scale.
    ("python-no-optimizer-states", "        optimizer=with_optimizer,\n", "        optimizer=False,\n", _ONE),
    ("python-no-loss-scale", "        optimizer=with_optimizer,\n", "        optimizer=False,\n", _SKIPPED),
    ("python-buffers-of-rank-0", "mine if mine in own else (info.name, _BUFFER)", "(info.name, _BUFFER)", _TWO),
    (
        "python-no-scalars-of-own-optimizer",
        "        run.external.state[param].update(_own_copies(scalars.get(part.param, {})))\n",
        "        pass\n",
        _OWN_COUNTS,
    ),
    (
        "python-no-states-of-own-optimizer",
        "        run.external.state[param][kind] = tensor\n",
        "        pass\n",
        _RESUMED_OUTSIDE,
    ),
    (
        "python-no-data-position",
        '_restore(run.loader, state.get("data"))',
        "pass",
        "test_no_sample_is_lost_or_repeated_when_an_epoch_goes_on[2]",
    ),
]

_STATE_TABLE = [
    (
        "python-loader-draws-of-the-run",
        "loader",
        "generator=torch.Generator()",
        "generator=torch.default_generator",
        "test_a_run_that_goes_on_within_an_epoch_has_the_same_bits[3]",
    ),
    (
        "python-own-states-of-any-shape",
        "checkpoint",
        "        if _has_tables(run):\n            raise",
        "        if False:\n            raise",
        "test_an_optimizers_state_that_cannot_be_cut_is_loaded_again[row]",
    ),
    (
        "python-one-name-for-two-tensors",
        "encoding",
        "    while name in tensors:",
        "    while False:",
        "test_client_state_comes_back_as_it_was",
    ),
    (
        "python-long-integers-rounded",
        "encoding",
        "-(2**63) <= value < 2**63",
        "-(2**2000) <= value < 2**2000",
        "test_client_state_comes_back_as_it_was",
    ),
    (
        "python-any-depth",
        "encoding",
        "    if depth > MAX_DEPTH:",
        "    if depth > 80:",
        "test_a_nesting_too_deep_to_be_loaded_is_refused_by_save",
    ),
    (
        "python-errors-of-one-rank",
        "together",
        "        run.core.together(step, call)",
        "        step()",
        "test_what_only_rank_0_cannot_save_is_said_on_every_rank[2]",
    ),
    (
        "python-new-ranks-draw-the-same",
        "checkpoint",
        '            sys.modules["numpy"].random.seed(seed % 2**32)',
        "            pass",
        "test_ranks_that_were_not_there_before_draw_numbers_of_their_own",
    ),
    (
        "python-failed-save-before-counting",
        "engine",
        "            save_failed = self._take_step()",
        "            if self._take_step():\n                run.core.report_failed_save()",
        "test_the_step_that_tells_of_a_failed_save_is_counted[False]",
    ),
    (
        "python-process-ends-without-waiting",
        "stopping",
        "            alive.core.wait_for_checkpoint()",
        "            pass",
        "test_a_process_that_ends_waits_for_its_save_whatever_holds_the_engine",
    ),
]

MUTANTS = [
    *(
        Mutant(name, _CHECKPOINT, old, new, "python", f"tests/python/checkpoint/test_checkpoint.py::{test}")
        for name, old, new, test in _TABLE
    ),
    *(
        Mutant(
            name,
            f"python/zeroshard/{module}.py",
            old,
            new,
            "python",
            f"tests/python/checkpoint/test_checkpoint_state.py::{test}",
        )
        for name, module, old, new, test in _STATE_TABLE
    ),
    Mutant(
        "python-loader-begins-the-same-epoch-again",
        "python/zeroshard/loader.py",
        "if self._batches > 0:  #",
        "if False:  #",
        "python",
        "tests/python/train/test_loader.py::test_iterating_again_begins_the_next_epoch",
    ),
]
