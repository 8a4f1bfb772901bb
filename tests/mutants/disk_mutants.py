"""What could be forgotten about disks that lose power, fail or are slow, and about memory that is short."""

from mutant import Mutant

_DURABLE, _WRITER, _DIRECTORY = "src/file/durable.cpp", "src/file/file_writer.cpp", "src/file/directory.cpp"
_SAVE, _STORE, _AGREEMENT = "src/checkpoint/save.cpp", "src/checkpoint/store.cpp", "src/checkpoint/agreement.h"

_SYNC_FILE = 'check_io(retry_interrupted([&] { return io.fsync(fd.get()); }), "make durable", path);'
_RENAME_FILE = "    directory.rename(temporary, name);\n"
_CLOSE_FILE = """
    const int closed = fd.close();
    if (closed != -EINTR) check_io(closed, "close", path);
"""
_POWER = "*PowerFailure.LeavesTheOldOrTheNewCheckpoint/*"

POWER = [
    (
        "power-data-not-durable",
        _WRITER,
        'check_io(retry_interrupted([&] { return io_.fdatasync(fd_.get()); }), "make durable", path_);',
        "",
    ),
    ("power-manifest-not-durable", _DURABLE, _SYNC_FILE, ""),
    (
        "power-rename-before-fsync",
        _DURABLE,
        f"    {_SYNC_FILE}{_CLOSE_FILE}{_RENAME_FILE}",
        f"{_RENAME_FILE}    {_SYNC_FILE}{_CLOSE_FILE}",
    ),
    ("power-names-not-durable", _DURABLE, "  directory.sync();\n", ""),
    ("power-root-not-durable", _DIRECTORY, "  parent.sync();\n", ""),
    (
        "power-commit-not-durable",
        _STORE,
        "    root.rename(temporary, tag);\n    root.sync();\n",
        "    root.rename(temporary, tag);\n",
    ),
    (
        "power-replacement-not-durable",
        _STORE,
        "    root.exchange(temporary, tag);\n    root.sync();\n",
        "    root.exchange(temporary, tag);\n",
    ),
    (
        "power-deletion-not-durable",
        _STORE,
        "no half-deleted directory looks whole\n  root.sync();\n",
        "no half-deleted directory looks whole\n",
    ),
    (
        "power-hint-before-commit",
        _SAVE,
        "    placed_ = true;",
        "    write_latest(*root_, request_.tag);\n    placed_ = true;",
    ),
]

DISK = [
    (
        "disk-short-write-ignored",
        "src/file/transfer.cpp",
        "      done += result;\n    } else if (result == -EINVAL && direct) {\n      // O_DIRECT does",
        "      done = bytes;\n    } else if (result == -EINVAL && direct) {\n      // O_DIRECT does",
        "FailingDisk.ShortWritesAreContinued",
    ),
    (
        "disk-interruption-is-an-error",
        "src/file/io.h",
        "result == -EINTR && tries < kMaxTries",
        "result == -EINTR && tries < 0 * kMaxTries",
        "FailingDisk.AnInterruptedCallIsRepeated",
    ),
    (
        "disk-newest-not-read-counts-as-absent",
        _STORE,
        "tries < 2; ++tries",
        "tries < 1; ++tries",
        "FailingDisk.AnyErrorOfAnyCallOfAnyRank",
    ),
    (
        "slow-error-swallowed",
        "src/checkpoint/async_saver.cpp",
        "    worker.error = error;\n",
        "",
        "SlowDisk.NothingIsLostWhenSavesComeFasterThanTheyAreWritten",
    ),
]

MEMORY = [
    (
        "memory-text-is-cut",
        "src/base/format.h",
        "  out.exceptions(std::ios::badbit);",
        "  //",
        "NoMemory.ATextIsWholeOrNone",
    ),
    (
        "memory-manifest-is-cut",
        "src/base/format.h",
        "  out.exceptions(std::ios::badbit);",
        "  //",
        "NoMemory.WhileSaving",
    ),
    (
        "memory-file-stays-open",
        _DIRECTORY,
        "  OpenFd opened(*io_, fd);\n  return Directory(*io_, std::move(opened), path_of(name));",
        "  std::string path = path_of(name);\n  return Directory(*io_, OpenFd(*io_, fd), std::move(path));",
        "NoMemory.Files",
    ),
    (
        "memory-shortage-is-damage",
        "src/checkpoint/load.cpp",
        'throw StateError(concat("there is not enough memory',
        'throw IoError(concat("there is not enough memory',
        "NoMemory.WhileLoading",
    ),
    (
        "memory-others-wait",
        _AGREEMENT,
        '    comm.abort("this rank has no memory left for a checkpoint");\n',
        "    (void)comm;\n",
        "NoMemory.NobodyWaitsForARankThatCannotTell",
    ),
    (
        "memory-deletion-fails-the-save",
        _SAVE,
        "    attempt([&] { retain(*root_, request_.keep, request_.tag); });",
        "    retain(*root_, request_.keep, request_.tag);",
        "NoMemory.WhileSaving",
    ),
]

MUTANTS = [
    *(Mutant(name, file, old, new, "checkpoint", _POWER) for name, file, old, new in POWER),
    *(Mutant(name, file, old, new, "checkpoint", test) for name, file, old, new, test in DISK),
    *(Mutant(name, file, old, new, "no_memory", test) for name, file, old, new, test in MEMORY),
]
