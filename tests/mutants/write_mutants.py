"""What could get lost, or unnoticed, of what users write to parameters."""

from mutant import Mutant

_WATCH, _WRITES = "src/engine/write_watch.cpp", "src/engine/user_writes.cpp"
_COUNTS, _NAMED = "UserWrites.WhatAllRanksWriteCounts", "UserWrites.WhatOneRankWritesIsNamedOnAllUntilItIsMended"

MUTANTS = [
    Mutant(name, file, old, new, "world", test)
    for name, file, old, new, test in [
        (
            "write-in-place-unseen",
            _WATCH,
            "return version(unit, param) != versions_[unit][param] || executor_",
            "return executor_",
            _NAMED,
        ),
        (
            "write-other-memory-unseen",
            _WATCH,
            " != versions_[unit][param] || executor_.unit(unit).is_moved(param);",
            " != versions_[unit][param];",
            _COUNTS,
        ),
        ("write-error-once", _WRITES, "      watch_.reject(u, i);\n", "", _NAMED),
        (
            "write-other-shape-taken",
            _WRITES,
            "written[next] = WriteWatch::kRefused;",
            "written[next] = 0;",
            "UserWrites.MemoryOfAnotherShapeIsRefusedOnAllRanks",
        ),
        (
            "write-while-reading-unseen",
            _WATCH,
            "if (now[i] == found->second.checksums[i]) continue;",
            "continue;",
            "UserWrites.WhatIsWrittenWhileItIsGatheredForReadingIsAnError",
        ),
        (
            "write-of-one-rank-kept-to-itself",
            "src/engine/consensus.cpp",
            "words[kWrote] > 0,",
            "words[kWrote] == comm.world_size(),",
            _NAMED,
        ),
    ]
]
