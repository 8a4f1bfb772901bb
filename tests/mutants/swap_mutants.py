"""What could be forgotten where parameters lie in files, and where saves read files in the background."""

import hold_mutants
import moment_mutants
from mutant import Mutant

_STORE, _ARRAY, _STORAGE = "src/file/chunk_store.cpp", "src/store/array.cpp", "src/store/storage.cpp"
_GROUP, _UNIT, _PLACEMENT = "src/group/sharded_group.cpp", "src/unit/unit.cpp", "src/placement/placement.cpp"
_STORE_H, _DEVICE = "src/file/chunk_store.h", "*Placements.GiveTheSameBitsInThe*AllInFiles*"
_LATE, _BITS = "UnitsInFiles.Gather*", "*ParameterFiles.GiveTheSameBits*"

_TABLE = [
    ("shard-used-before-it-arrived", _STORE, "  if (!buffer->writing) wait_for(*buffer);\n", "", "unit", _LATE),
    (
        "buffer-of-another-shard",
        "src/file/chunk_store.h",
        "      chunk = of_chunk;\n      there = unchecked = changed = {};\n",
        "      chunk = of_chunk;\n      unchecked = changed = {};\n",
        "unit",
        _LATE,
    ),
    (
        "shard-at-the-wrong-place",
        _UNIT,
        "group.begin_copy_of_shard(place, ",
        "group.begin_copy_of_shard(full.data, ",
        "world",
        _BITS,
    ),
    (
        "own-master-weights-not-read",
        _GROUP,
        "return ways.reads || !has_master() ? Access::kModify",
        "return ways.reads ? Access::kModify",
        "group",
        "FileShardTest.AGroupUsesThem*",
    ),
    (
        "neighbours-overwritten",
        _STORAGE,
        "::kOverwrite && !is_whole(range, values))",
        "::kOverwrite && !is_whole(range, values) && false)",
        "group",
        "FileShardTest.ElementsBeside*",
    ),
    (
        "updates-not-written",
        _GROUP,
        "  if (!ways.writes) return Access::kRead;",
        "  if (!ways.reads) return Access::kRead;",
        "world",
        _BITS,
    ),
    (
        "masters-of-an-optimizer-outside-go-to-files",
        _PLACEMENT,
        "  const bool may_use_files = !are_masters || !options.masters_in_memory;\n",
        "  const bool may_use_files = true;\n",
        "placement",
        "Place.MasterWeightsThatStay*",
    ),
    (
        "none-stay-in-memory",
        _PLACEMENT,
        "  keep_in_memory(units, options, table);\n",
        "",
        "placement",
        "Place.ParametersInFiles",
    ),
    (
        "kept-on-the-device",
        _PLACEMENT,
        "parameters.tier = host_tier(options.on_device);",
        "parameters.tier = Tier::kDevice;",
        "plan",
        "PlanLedger.ParametersInFilesBesideADevice",
    ),
    ("buffer-filled-while-it-is-copied", _STORE_H, "      await_readers();\n", "", "file", "ChunkStore.WhatIsReadOn*"),
    (
        "copies-untold",
        _ARRAY,
        "    storage_->read_on(stream);\n",
        "",
        "accelerator",
        _DEVICE,
    ),
    (
        "written-while-it-is-copied",
        _STORE,
        "        buffer->await_readers();\n",
        "",
        "accelerator",
        "*Placements.LoadWhatOthersSave*AllInFiles*",
    ),
    (
        "freed-while-it-is-copied",
        _STORE,
        "      buffer.await_readers();\n    } catch",
        "      buffer.readers.clear();\n    } catch",
        "accelerator",
        "*Placements.LetAnEngineGo*AllInFiles*",
    ),
    (
        "read-ahead-waits-for-copies",
        _STORE,
        " &&\n               !each.is_read();\n",
        ";\n",
        "file",
        "ChunkStore.NobodyWaits*",
    ),
]

MUTANTS = [*(Mutant(f"swap-{name}", *rest) for name, *rest in _TABLE), *hold_mutants.MUTANTS, *moment_mutants.MUTANTS]
