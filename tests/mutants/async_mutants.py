"""What could be forgotten when a save is written in the background."""

from mutant import Mutant

_ASYNC = "src/checkpoint/async_saver.cpp"

_TABLE = [
    ("async-error-swallowed", _ASYNC, "    worker.error = error;\n", "", "AsyncSaver.AnErrorComesOutOnceOnEveryRank"),
    (
        "async-error-for-ever",
        _ASYNC,
        "std::exchange(worker_->error, nullptr)",
        "worker_->error",
        "AsyncSaver.AnErrorComesOutOnceOnEveryRank",
    ),
    (
        "async-no-copy",
        _ASYNC,
        "        copy(stretch.to + at, stretch.from + at, bytes);\n",
        "        if (bytes == 0) copy(nullptr, nullptr, 0);\n",
        "AsyncSaver.TrainingMayChangeTheStateAtOnce",
    ),
    (
        "async-copies-overlap",
        _ASYNC,
        "copy(stretch.to + at,",
        "copy(staging_ + at,",
        "AsyncSaver.TrainingMayChangeTheStateAtOnce",
    ),
    (
        "async-copies-a-piece-again",
        _ASYNC,
        "stretch.from + at, bytes",
        "stretch.from, bytes",
        "AsyncSaver.AnUncutStretchIsCopiedPieceByPiece",
    ),
    (
        "async-publishes-the-whole-stretch",
        _ASYNC,
        "publish(stretch.to + at + bytes);",
        "publish(stretch.to + stretch.bytes);",
        "AsyncSaver.AnUncutStretchIsCopiedPieceByPiece",
    ),
    (
        "async-writes-ahead-of-the-copy",
        "src/checkpoint/rank_file.cpp",
        "      request.wait_for_data(data + at + size);\n",
        "",
        "AsyncSaver.WhatIsNotCopiedYetIsNotWritten",
    ),
    (
        "async-copies-first",
        _ASYNC,
        "      publish(stretch.to + at + bytes);\n    }\n  }\n",
        "    }\n  }\n  publish(staging_ + staging_bytes_);\n",
        "AsyncSaver.WritesWhileItCopies",
    ),
    (
        "async-copy-error-swallowed",
        _ASYNC,
        "    publish(nullptr, std::current_exception());\n",
        "    publish(staging_ + staging_bytes_);\n",
        "AsyncSaver.ACopyThatFailsIsAnErrorOfEveryRank",
    ),
    (
        "async-joins-in-a-child",
        _ASYNC,
        "if (::getpid() != process_)",
        "if (false)",
        "AsyncSaver.AForkedChildLeavesItAlone",
    ),
]

MUTANTS = [Mutant(name, file, old, new, "checkpoint", test) for name, file, old, new, test in _TABLE]
