"""What could be forgotten where a save reads states in files while training goes on."""

from mutant import Mutant

_STORE, _ARRAY, _RANK_FILE = "src/file/chunk_store.cpp", "src/store/array.cpp", "src/checkpoint/rank_file.cpp"
_SAVE, _WAITS = "src/engine/engine_checkpoint.cpp", "FileStatesTest.AreHeldWhileASaveReadsThem"

_TABLE = [
    (
        "update-does-not-wait",
        _ARRAY,
        "  if (hold_ && access != Access::kRead) hold_->await_readers();\n",
        "",
        "group",
        _WAITS,
    ),
    (
        "shard-does-not-wait",
        "src/group/sharded_group.cpp",
        "if (WriteHold* const hold = states_ ? states_->hold() : nullptr) hold->await_readers();",
        "static_cast<void>(states_);",
        "group",
        _WAITS,
    ),
    (
        "ends-before-the-last-read",
        _RANK_FILE,
        "last_.at(data) == slice",
        "last_.at(data) >= slice",
        "checkpoint",
        "HeldSlices.AreReadWhereTheyLieAndMayChangeOneAfterTheOther",
    ),
    (
        "stays-when-reading-fails",
        _RANK_FILE,
        "    for (const auto& [data, last] : last_) data->end_reading();\n",
        "",
        "checkpoint",
        "HeldSlices.ARankThatCannotReadDoesNotKeepItsOwn",
    ),
    (
        "buffers-are-not-looked-at",
        _STORE,
        "buffer != nullptr && (buffer->changed[bit] || (is_at_rest && buffer->there[bit]))",
        "false",
        "file",
        "ChunkReader.ReadsValuesWhereverTheyLie",
    ),
    (
        "buffers-are-taken-while-they-fill",
        _STORE,
        "buffer != nullptr && (buffer->writing || transfers_->is_idle(number(*buffer)))",
        "buffer != nullptr",
        "file",
        "ChunkReader.ReadsValuesWhereverTheyLie",
    ),
    (
        "reader-does-not-end-the-store",
        "src/file/chunk_reader.cpp",
        "      store_.fail(error.what());\n",
        "      static_cast<void>(error);\n",
        "file",
        "ChunkReader.AnyFailingReadIsToldAndEndsTheStore",
    ),
    (
        "writes-of-users-are-not-taken",
        _SAVE,
        "staged ? UserWrites::OfMaster::kAllButFp32InFiles : UserWrites::OfMaster::kInMemory",
        "UserWrites::OfMaster::kInMemory",
        "engine",
        "SwapSave.HasWhatUsersWroteBeforeItAlone",
    ),
    (
        "writes-of-users-are-taken-by-the-copy-alone",
        "src/checkpoint_torch/state_data.cpp",
        "    if (!is_written(copy, params)) return;\n    take_written(copy, params);\n",
        "    return take_written(copy, params);\n",
        "engine",
        "SwapSave.TakesWhatIsPutBackAfterItAsElsewhere",
    ),
    (
        "whole-parameters-are-not-copied",
        "src/engine/saves.cpp",
        "is_held(group) && group.users_may_write() && group.flat().dtype == DType::kFloat32",
        "false",
        "engine",
        "SwapSave.HasWhatUsersWroteBeforeItAlone",
    ),
    (
        "parameters-in-files-do-not-wait",
        _ARRAY,
        "  if (hold_ && access != Access::kRead) hold_->await_readers();\n",
        "",
        "group",
        "FileShardTest.AreHeldWhileASaveReadsThem",
    ),
    (
        "waits-with-states-on-loan",
        "src/group/sharded_group.cpp",
        "access_to_parameters(ways) != Access::kRead) hold->await_readers();",
        "access_to_parameters(ways) != Access::kRead) return;",
        "group",
        "FileShardTest.AreHeldWhileASaveReadsThem",
    ),
    (
        "nobody-hears-of-an-interruption",
        "src/engine/ranks.cpp",
        "  all.check();  // another rank may have failed\n",
        "",
        "engine",
        "SwapSave.AnInterruptionEndsTheWaitOnEveryRank",
    ),
]

MUTANTS = [Mutant(f"hold-{name}", file, old, new, program, test) for name, file, old, new, program, test in _TABLE]
