"""What sharded parameters before an engine could get wrong, and a script for DeepSpeed afterwards."""

from mutant import Mutant

_SHARDS, _ZERO = "python/zeroshard/shards.py", "python/zeroshard/compat/zero.py"
_INIT = "test_each_rank_keeps_a_piece_of_the_values_of_rank_zero[3]"
_NESTED = "test_inside_another_context_one_rank_alone_may_gather[False]"
_GATHER, _COPIES = "test_gathers_whatever_it_is_given", "test_copies_and_casts_keep_the_shards"
_ASSIGNED = "test_data_that_is_assigned_counts"
_TIES, _OVER = "test_tied_parameters_stay_tied", "test_an_engine_takes_the_shards_over[2]"

_TABLE = [
    ("shards-of-one-rank", _SHARDS, "shard.ranks.size)[shard.ranks.rank]", "shard.ranks.size)[0]", _INIT),
    ("shards-own-values", _SHARDS, "    shard.ranks.broadcast(flat, root,", "    (flat, root,", _INIT),
    ("shards-stay-whole", _SHARDS, "        param.data = hollow\n", "", _INIT),
    ("shards-gathered-in-any-order", _SHARDS, "in sorted(shards.items())", "in shards.items()", _GATHER),
    ("shards-keep-dropped-writes", _SHARDS, "if done and (modify_rank", "if (modify_rank", _GATHER),
    ("shards-gathered-twice", _SHARDS, "shards.items()) if not shard.is_held]", "shards.items())]", _NESTED),
    ("shards-shared-by-a-copy", _SHARDS, "piece_of(self).clone()", "piece_of(self)", _COPIES),
    ("shards-keep-their-dtype", _SHARDS, "shard.piece.to(param.device, param.dtype)", "shard.piece", _COPIES),
    (
        "shards-ties-end",
        _SHARDS,
        "setdefault(memory, (name, param))",
        "setdefault(id(param), (name, param))",
        _TIES,
    ),
    ("shards-lose-assigned-data", _SHARDS, "for param in (*assigned, *found)", "for param in found[::-1]", _ASSIGNED),
    (
        "shards-lose-casts",
        _SHARDS,
        "                    piece_of(_tied(shard)[0])  #",
        "                    pass  #",
        _ASSIGNED,
    ),
    (
        "shards-views-are-ties",
        _SHARDS,
        "if param.shape != shard.shape or param.storage_offset() != 0 or not param.is_contiguous():",
        "if False:",
        "test_constructors_that_initialize_other_modules",
    ),
    (
        "shards-fail-for-ever",
        _SHARDS,
        "            _ranks = None\n",
        "            pass\n",
        "test_after_a_failure_another_model_can_be_made",
    ),
    ("shards-taken-by-nobody", "python/zeroshard/making.py", "        shards.take(", "        list(", _OVER),
    (
        "shards-of-one-shape-are-one",
        "python/zeroshard/units.py",
        "        return id(shard)\n",
        "        return 0\n",
        _OVER,
    ),
    (
        "shards-units-gathered-twice",
        _ZERO,
        "key is None or key not in _units_held",
        "True",
        _NESTED.replace("False", "True"),
    ),
    (
        "shards-constructors-stay",
        _ZERO,
        "        kind.__init__ = constructor\n    _w",
        "        pass\n    _w",
        "test_constructors_are_as_before_afterwards",
    ),
    (
        "shards-dtype-of-nobody",
        _ZERO,
        "            return dtype\n",
        "            return None\n",
        "test_the_configuration_gives_the_dtype",
    ),
    (
        "shards-inside-leaves",
        "python/zeroshard/units.py",
        "if id(block) not in inside]",
        "]",
        "test_leaf_modules_are_units",
    ),
]

_SCRIPTS = [
    (
        "script-aborts-at-its-end",
        "python/zeroshard/distributed.py",
        "    _C.let_threads_stay()\n",
        "",
        "start.py::test_a_script_may_end_while_a_thread_of_it_waits_in_torch",
    ),
    (
        "generation-gathers-every-token",
        "python/zeroshard/compat/generation.py",
        "with GatheredParameters(_kept(self)):",
        "with GatheredParameters([]):",
        "engine.py::test_ranks_generate_different_numbers_of_tokens",
    ),
    (
        "generation-without-a-budget",
        "python/zeroshard/compat/generation.py",
        " if sum(p.numel() for p in params) <= _budgets[core])",
        ")",
        "engine.py::test_generation_above_its_budget_gathers_for_every_token",
    ),
    (
        "adalora-not-for-backward",
        "python/zeroshard/hooks.py",
        "self.leave(_BETWEEN, made)",
        "self.leave(_BETWEEN, [])",
        "trainer.py::test_adalora_reads_gradients_after_the_step_and_takes_ranks_away[2-3]",
    ),
    (
        "adalora-mask-is-lost",
        "python/zeroshard/compat/adalora.py",
        "            safe_set_full_fp32_param(param, copy)\n",
        "            pass\n",
        "trainer.py::test_adalora_reads_gradients_after_the_step_and_takes_ranks_away[2-3]",
    ),
    (
        "hash-of-shards",
        "python/zeroshard/compat/trl_hash.py",
        "        with gathered([self._value]):\n",
        "        if True:\n",
        "trl.py::test_trainers_of_trl",
    ),
    (
        "one-rank-has-no-ds-attributes",
        _ZERO,
        "return (run is not None and run.config.stage == 3) or not",
        "return not",
        "pains.py::test_parameters_of_an_engine_have_ds_status[1]",
    ),
]

MUTANTS = [
    Mutant(name, file, old, new, "python", f"tests/python/compat/test_compat_{test}")
    for name, file, old, new, test in (
        *((*others, f"zero.py::{test}") for *others, test in _TABLE),
        *_SCRIPTS,
    )
]
