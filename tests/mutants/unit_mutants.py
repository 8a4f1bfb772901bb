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
        "  for (UnitParam& param : params_) param.end_hold(left);\n",
        "  for (UnitParam& param : params_) param.end_hold({});\n",
        "unit",
        "Unit.ViewsThatUsersKeepHaveTheValuesOfTheTimeWhenTheyHeldIt",
    ),
    Mutant(
        "views-of-a-forward-kept",
        "src/unit/unit_param.cpp",
        "  point_at_storage(own_->storage);\n",
        "  point_at_storage(make_storage(name_, int64_t(held.nbytes()), view_.device()));\n",
        "unit",
        "Unit.ViewsThatWereThereBeforeComeAndGoWithTheParameter",
    ),
    Mutant(
        "reshard-does-not-wait",
        "src/unit/unit.cpp",
        "  wait();  // a collective might still write to the memory\n",
        "",
        "unit",
        "Unit.ReshardWaitsForAGatherUnderWay",
    ),
    Mutant(
        "tensors-known-by-their-address",
        "src/hooks/autograd_hooks.cpp",
        "Entry{weak, num_tensors_++, nullptr",
        "Entry{weak, int64_t(reinterpret_cast<intptr_t>(impl)), nullptr",
        "hooks",
        "BackwardHooks.NoTwoTensorsHaveOneNumber",
    ),
    Mutant(
        "modules-known-by-their-address",
        "src/nn/module_units.cpp",
        "Known{std::move(held), path",
        "Known{nullptr, path",
        "engine",
        "ModuleUnits.AModuleIsNotTakenForOneThatIsGone",
    ),
]
