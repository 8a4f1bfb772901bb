"""What the reuse of freed memory, and the gathering of what a forward reads, could get wrong."""

from mutant import Mutant

_CACHE, _HOOKS = "src/memory/block_cache.cpp", "python/zeroshard/hooks.py"
_UNITS = "tests/python/units/test_units.py::test_parameters_"

_TABLE = [
    (
        "blocks-all-is-kept",
        "    shrink_to(limit - used_bytes_ - needed);\n",
        "",
        "BlockCache.InUseAndKeptAreNoMoreThanThePeakOfTwoSteps",
    ),
    (
        "blocks-of-old-steps-are-kept",
        "  shrink_to(last_peak_ - used_bytes_);\n",
        "",
        "BlockCache.WhatStepsNoLongerNeedGoes",
    ),
    ("blocks-nothing-is-kept", "> needed / 8", ">= 0", "BlockCache.AFreedBlockIsForTheNextOfItsSize"),
    ("blocks-large-for-small", " || found->first - needed > needed / 8", "", "BlockCache.NothingIsWastedOnASmallOne"),
    (
        "blocks-without-lock",
        "  const std::lock_guard lock(mutex_);\n  end_overdue_step();\n  used_bytes_ -=",
        "  used_bytes_ -=",
        "BlockCache.ThreadsShareOne",
    ),
]

_LIMITS = "src/plan/memory_limits.cpp"
_LIMITS_TABLE = [
    (
        "limit-is-passed",
        "src/memory/ledger.cpp",
        "bytes > 0 ? passed_limit(tier, bytes) : nullptr",
        "static_cast<const TierLimit*>(nullptr)",
        "memory",
        "Ledger.ReservesUpToTheLimitOfATier",
    ),
    (
        "limit-of-one-tier",
        "src/memory/ledger.cpp",
        "for (const Tier tier : limit.tiers) sum += current_.total(tier);",
        "sum += current_.total(limit.tiers[0]);",
        "memory",
        "Ledger.ALimitMayCountTiersTogether",
    ),
    (
        "limit-of-the-outer-group",
        "src/memory/host_memory.cpp",
        "    if (path.find('/') == path.npos) return;",
        "    return;",
        "memory",
        "HostFiles.*",
    ),
    (
        "advice-not-planned",
        _LIMITS,
        "    if (fits(search.needs(change), search.limits)) return",
        "    if (change.stage > 0) return",
        "plan",
        "MemoryLimits.TheSmallestChangeThatFitsIsTold",
    ),
    (
        "advice-one-rank-short",
        "src/plan/smallest_world_size.cpp",
        "  return high;",
        "  return low;",
        "plan",
        "MemoryLimits.AdviceFitsAndOneRankLessDoesNot",
    ),
    ("limit-not-shared", _LIMITS, "host.most() / ranks", "host.most()", "plan", "MemoryLimits.RanksShareTheirHost"),
]

_HOOKS_TABLE = [
    (
        "hooks-read-not-gathered",
        "            self._running[-1].append(unit)\n            self._core.pre_forward(unit)\n",
        "            self._running[-1].append(unit)\n",
        "used_by_several_modules[reading]",
    ),
    (
        "hooks-read-not-for-backward",
        "self._core.post_forward(other, tensors)",
        "self._core.post_forward(other, [])",
        "used_by_several_modules[borrowing]",
    ),
    ("hooks-read-stays", "self._core.post_forward(other, tensors)", "False", "read_in_forwards_that_fail"),
]

MUTANTS = [
    *(Mutant(name, _CACHE, old, new, "memory", test) for name, old, new, test in _TABLE),
    *(Mutant(*row) for row in _LIMITS_TABLE),
    Mutant(
        "blocks-refusal-with-kept",
        _CACHE,
        "      shrink_to(0);\n",
        "",
        "no_memory",
        "NoMemory.FreedBlocksGoBeforeATensorDoesNotFit",
    ),
    Mutant(
        "hooks-interrupted-forward-runs",
        "python/zeroshard/engine.py",
        "        self._readers.reset()\n",
        "",
        "python",
        f"{_UNITS}read_in_forwards_that_fail",
    ),
    *(Mutant(name, _HOOKS, old, new, "python", f"{_UNITS}{case}") for name, old, new, case in _HOOKS_TABLE),
    Mutant(
        "takeover-leaves-hooks",
        "python/zeroshard/ownership.py",
        "        self.readers.remove()\n",
        "",
        "python",
        "tests/python/train/test_takeover.py::test_a_second_engine_takes_the_module_over",
    ),
    Mutant(
        "blocks-kept-for-ever",
        _CACHE,
        "  if (now - step_ended_ < kStepSeconds) return;\n",
        "  return;\n",
        "memory",
        "BlockCache.AProcessThatEndsNoStepKeepsNothingForEver",
    ),
    Mutant(
        "hooks-of-gone-tensors-stay",
        "src/hooks/autograd_hooks.cpp",
        "  if (entries_.size() >= sweep_at_) sweep();\n",
        "",
        "hooks",
        "BackwardHooks.TensorsThatAreGoneAreForgotten",
    ),
]

MUTANTS += [
    Mutant(
        "range-of-units-without-its-end",
        "src/config/unit_pattern.cpp",
        "*value <= range->last",
        "*value < range->last",
        "placement",
        "UnitPattern.NamesTheLastPartsOfAName",
    ),
    Mutant(
        "rule-that-names-no-unit",
        "src/placement/placement.cpp",
        "ZS_CHECK(used[i], ",
        "ZS_CHECK(true, ",
        "placement",
        "Place.ARuleThatNamesNoUnitIsRefusedWithThoseThatThereAre",
    ),
    Mutant(
        "replicated-units-have-slots",
        "src/plan/buffer_sizes.cpp",
        "if (table[u].parameters == Placement::kSharded && bytes > 0)",
        "if (table[u].parameters != Placement::kPersistent && bytes > 0)",
        "plan",
        "PlanLedger.Bf16ByStage",
    ),
    Mutant(
        "noted-units-are-predicted",
        "src/schedule/execution_order.cpp",
        "  if (in_pass_ && needed_.size() < kMaxLength) needed_.push_back(unit);",
        "  if (in_pass_) current_.push_back(unit);",
        "schedule",
        "ExecutionOrder.WhatIsNotedIsNeededAndNeverPredicted",
    ),
]
