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
            "return version(place) != versions_[place.unit][place.param] || executor_",
            "return executor_",
            _NAMED,
        ),
        (
            "write-other-memory-unseen",
            _WATCH,
            " != versions_[place.unit][place.param] || executor_.unit(place.unit).is_moved(place.param);",
            " != versions_[place.unit][place.param];",
            _COUNTS,
        ),
        ("write-error-once", _WRITES, "    watch_.reject(params[p]);\n", "", _NAMED),
        (
            "write-other-shape-taken",
            _WRITES,
            "written[p] = WriteWatch::kRefused;",
            "written[p] = 0;",
            "UserWrites.MemoryOfAnotherShapeIsRefusedOnAllRanks",
        ),
        (
            "write-while-reading-unseen",
            "src/engine/held_values.cpp",
            "if (now[i] == reading->checksums[i]) continue;",
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
