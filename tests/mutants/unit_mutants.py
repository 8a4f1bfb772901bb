"""Faults in units, their parameters, and what autograd is asked about them."""

from mutant import Mutant

MUTANTS = [
    Mutant(
        "no-guard",
        "src/unit/unit.cpp",
        "  for (UnitParam& param : params_) param.take();\n",
        "",
        "unit",
        "Unit.ReadingAShardedParameterNamesIt",
    ),
    Mutant(
        "kept-views-without-memory",
        "src/unit/unit.cpp",
        "    if (param.has_new_views()) param.leave(left);\n",
        "    if (param.has_new_views()) param.take();\n",
        "unit",
        "Unit.ViewsThatUsersKeepHaveTheValuesOfTheTimeWhenTheyHeldIt",
    ),
    Mutant(
        "views-of-a-forward-kept",
        "src/unit/unit_param.h",
        "return num_views() > noted_views_;",
        "return num_views() > 0;",
        "unit",
        "Unit.ViewsThatWereThereBeforeComeAndGoWithTheParameter",
    ),
    Mutant(
        "reshard-does-not-wait",
        "src/unit/unit.cpp",
        "  wait();  // a collective may still write to the memory\n",
        "",
        "unit",
        "Unit.ReshardWaitsForAGatherUnderWay",
    ),
    Mutant(
        "tensors-known-by-their-address",
        "src/hooks/autograd_hooks.cpp",
        "Entry{weak, num_tensors_++}",
        "Entry{weak, int64_t(reinterpret_cast<intptr_t>(impl))}",
        "hooks",
        "BackwardHooks.NoTwoTensorsHaveOneNumber",
    ),
]
