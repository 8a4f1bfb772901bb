"""What losses and MLPs in tiles could get wrong."""

from mutant import Mutant

_LOOP, _HOOKS, _FRONT = "src/hooks/tiles.cpp", "python/zeroshard/hooks.py", "python/zeroshard/tiles.py"
_VALUES = "test_losses_and_gradients_are_those_without_tiles[llama]"

_TABLE = [
    (
        "tiles-sum-16-bit-gradients-in-16-bits",
        _LOOP,
        "      sum = grad.to(at::kFloat);\n",
        "      sum = grad.clone();\n",
        "Tiles.NarrowGradientsAreSummedInFp32",
    ),
    (
        "tiles-call-hooks-of-parameters-each",
        _LOOP,
        "      const WithoutTensorHooks without_hooks(params);\n",
        "",
        "Tiles.AParameterGetsOneGradient",
    ),
    (
        "tiles-draw-new-random-numbers",
        _LOOP,
        "  if (tiling.random) with_random",
        "  if (false) with_random",
        "Tiles.RandomNumbersAreTheSameInBothPasses",
    ),
    (
        "tiles-ignore-the-gradient-of-the-loss",
        _LOOP,
        "    sums.scale(grad);\n",
        "",
        "Tiles.GradientsAtOnceFollowThatOfTheResult",
    ),
    (
        "tiles-lose-late-parameters",
        _LOOP,
        "!late.empty())\n      throw",
        "false)\n      throw",
        "Tiles.AParameterOfALaterTileIsAnError",
    ),
    (
        "tiles-take-changed-parameters",
        _LOOP,
        "    if (tiling.params[i]._version() != tiling.versions[i])\n",
        "    if (false)\n",
        "Tiles.AParameterThatChangesBetweenThePassesIsAnError",
    ),
    (
        "tiles-gather-each",
        _HOOKS,
        "_thread.loop, _thread.loop or self",
        "_thread.loop, None",
        "test_a_step_has_the_collectives_of_one_without_tiles[llama-3]",
    ),
    (
        "tiles-count-as-events-of-backward",
        _HOOKS,
        "        if readers.computes_backward(unit):\n            return\n",
        "",
        "test_ranks_may_differ_in_their_numbers_of_tiles",
    ),
    (
        "tiles-shift-labels-twice",
        _FRONT,
        '{"shift_labels": labels.contiguous(), "num_items_in_batch": number}',
        '{"num_items_in_batch": number}',
        _VALUES,
    ),
    (
        "tiles-average-by-tile",
        _FRONT,
        '"num_items_in_batch": number}',
        '"num_items_in_batch": (labels != ignored).sum()}',
        _VALUES,
    ),
    (
        "tiles-take-a-changed-loss",
        _FRONT,
        "if len(losses) != 1 or result.loss is not losses[0]:",
        "if False:",
        "test_a_loss_to_which_the_model_adds_is_refused",
    ),
]

MUTANTS = [
    Mutant(name, file, old, new, "hooks", test)
    if file == _LOOP
    else Mutant(name, file, old, new, "python", f"tests/python/sequence/test_tiles.py::{test}")
    for name, file, old, new, test in _TABLE
]
