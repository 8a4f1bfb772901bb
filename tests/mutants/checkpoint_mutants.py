"""What could be forgotten in src/checkpoint and src/file."""

from mutant import Mutant

_WRITER, _DURABLE, _POSIX = "src/file/file_writer.cpp", "src/file/durable.cpp", "src/file/posix_io.cpp"
_SAVE, _STORE, _ASYNC = "src/checkpoint/save.cpp", "src/checkpoint/store.cpp", "src/checkpoint/async_saver.cpp"
_PROCESS, _FILES = "src/base/process_name.cpp", "src/checkpoint/files.cpp"
_ENGINE, _EXPORT, _MODULE = (
    "src/engine/engine_checkpoint.cpp",
    "src/engine/engine_export.cpp",
    "src/engine/module_checkpoint.cpp",
)
_READER, _LOAD, _MANIFEST = "src/checkpoint/reader.cpp", "src/checkpoint/load.cpp", "src/checkpoint/manifest.cpp"

_SYNC_FILE = 'check_io(retry_interrupted([&] { return io.fsync(fd.get()); }), "make durable", path);'
_CLOSE_FILE = """
    const int closed = fd.close();
    if (closed != -EINTR) check_io(closed, "close", path);
"""

FILE = [
    ("file-rename-without-fsync", _DURABLE, _SYNC_FILE, "", "SmallFile.IsDurableBeforeItsNameIsAndThenItsName"),
    (
        "file-rename-before-fsync",
        _DURABLE,
        f"    {_SYNC_FILE}{_CLOSE_FILE}    directory.rename(temporary, name);\n",
        f"    directory.rename(temporary, name);\n    {_SYNC_FILE}{_CLOSE_FILE}",
        "SmallFile.IsDurableBeforeItsNameIsAndThenItsName",
    ),
    (
        "file-no-directory-fsync",
        _DURABLE,
        "  directory.sync();\n",
        "",
        "SmallFile.IsDurableBeforeItsNameIsAndThenItsName",
    ),
    (
        "file-temporary-stays",
        _DURABLE,
        "    io.unlink_at(directory.fd(), temporary);",
        "    //",
        "SmallFile.HasTheOldOrTheNewContentsWhateverFails",
    ),
    (
        "file-no-fsync-of-parents",
        "src/file/directory.cpp",
        "  parent.sync();\n",
        "",
        "Directory.CreatedParentsAreDurable",
    ),
    (
        "file-short-write-ignored",
        "src/file/transfer.cpp",
        "      done += result;\n    } else if (result == -EINVAL && direct) {\n      // The device",
        "      done = bytes;\n    } else if (result == -EINVAL && direct) {\n      // The device",
        "FileWriter.ShortWritesAndInterruptionsChangeNothing",
    ),
    ("file-no-fallocate", _WRITER, "    reserve();\n", "", "FileWriter.AFullDiskIsNoticedBeforeTheFirstByte"),
    (
        "file-background-error-lost",
        "src/file/background.h",
        "    if (error_) std::rethrow_exception(error_);\n",
        "",
        "FileWriter.ReportsEveryError",
    ),
    (
        "file-tail-at-wrong-offset",
        _WRITER,
        "filled_ - whole, offset_ + whole);",
        "filled_ - whole, offset_);",
        "FileWriter.WritesWhatWasAppended",
    ),
    (
        "file-not-cut",
        _WRITER,
        "if (offset_ < reserved_)",
        "if (false)",
        "FileWriter.WritesWhatWasAppended",
    ),
    (
        "file-links-followed",
        _POSIX,
        "RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS",
        "RESOLVE_BENEATH",
        "*Confined.HostileNamesOpenNothing/0",
    ),
    (
        "file-devices-opened",
        _POSIX,
        "!S_ISREG(found.st_mode)) result",
        "S_ISDIR(found.st_mode)) result",
        "*Confined.OnlyRegularFilesAreOpened/*",
    ),
    ("file-readable-by-all", _POSIX, "kFileMode = 0600", "kFileMode = 0644", "*Confined.ModesDoNotDependOnTheUmask/*"),
]

CHECKPOINT = [
    (
        "save-data-not-durable",
        _WRITER,
        'check_io(retry_interrupted([&] { return io_.fdatasync(fd_.get()); }), "make durable", path_);',
        "",
        "Checkpoint.NothingIsRenamedBeforeItIsDurable",
    ),
    (
        "save-commit-not-durable",
        _STORE,
        "    root.rename(temporary, tag);\n    root.sync();\n",
        "    root.rename(temporary, tag);\n",
        "Commit.ACheckpointThatIsNotTheNewestIsDurableToo",
    ),
    (
        "save-latest-before-commit",
        _SAVE,
        "    placed_ = true;",
        "    write_latest(*root_, request_.tag);\n    placed_ = true;",
        "Commit.TheHintFollowsTheCheckpointAndDeletionTheHint",
    ),
    (
        "save-deletion-before-latest",
        _SAVE,
        "    if (request_.latest) attempt([&] { write_latest(*root_, request_.tag); });\n"
        "    attempt([&] { retain(*root_, request_.keep, request_.tag); });\n",
        "    attempt([&] { retain(*root_, request_.keep, request_.tag); });\n"
        "    if (request_.latest) attempt([&] { write_latest(*root_, request_.tag); });\n",
        "Commit.TheHintFollowsTheCheckpointAndDeletionTheHint",
    ),
    (
        "save-replaces-in-two-steps",
        _STORE,
        "    root.exchange(temporary, tag);\n",
        "    root.remove_tree(tag);\n    root.rename(temporary, tag);\n",
        "Commit.ReplacingATagNeverLeavesNeither",
    ),
    ("save-temporary-stays", _SAVE, "      root_->remove_tree(temporary_);\n", "", "Commit.AFailedSaveLeavesNoTrace"),
    (
        "save-errors-of-other-ranks-lost",
        "src/checkpoint/agreement.cpp",
        "outcome == kDone ? -comm.world_size()",
        "outcome == kDone || comm.rank() > 0 ? -comm.world_size()",
        "Checkpoint.EveryFailingCall",
    ),
    (
        "save-retention-deletes-newest",
        _STORE,
        "size_t i = size_t(keep); i < listing.committed.size(); ++i",
        "size_t i = 0; i + size_t(keep) < listing.committed.size(); ++i",
        "Checkpoint.NewestCountsAndOldOnesGo",
    ),
    (
        "save-retention-one-too-many",
        _STORE,
        "size_t i = size_t(keep); i <",
        "size_t i = size_t(keep) + 1; i <",
        "Checkpoint.NewestCountsAndOldOnesGo",
    ),
    (
        "save-leftovers-stay",
        _STORE,
        "    if (is_abandoned(name)) root.remove_tree(name);",
        "    (void)is_abandoned(name);",
        "Commit.OnlyWhatDeadProcessesOfThisHostLeftIsSwept",
    ),
    (
        "save-leftovers-fill-the-disk",
        _SAVE,
        "    attempt([&] { sweep(*root_); });",
        "    //",
        "Commit.WhatDeadProcessesLeftGoesBeforeAnythingIsWritten",
    ),
    (
        "save-undeleted-ones-stay",
        _SAVE,
        "    attempt([&] { retain_before(*root_, request_.keep, request_.step, request_.tag); });",
        "    //",
        "Retain.WhatADeathLeftUndeletedGoesBeforeTheNextSave",
    ),
    (
        "save-sweeps-the-living",
        _PROCESS,
        "::kill(pid, 0) != 0 && errno == ESRCH",
        "true",
        "Commit.OnlyWhatDeadProcessesOfThisHostLeftIsSwept",
    ),
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
        "      slices[i].data = to + run;\n",
        "",
        "AsyncSaver.TrainingMayChangeTheStateAtOnce",
    ),
    ("async-copies-overlap", _ASYNC, "    to += run;\n", "", "AsyncSaver.TrainingMayChangeTheStateAtOnce"),
    (
        "load-payload-not-checked",
        _READER,
        "  if (!whole)\n    throw",
        "  if (false)\n    throw",
        "Checkpoint.DamageIsNamedAndPassedOverByAllRanks",
    ),
    (
        "load-header-not-checked",
        _READER,
        "    if (!whole) throw",
        "    if (false) throw",
        "Checkpoint.DamageIsNamedAndPassedOverByAllRanks",
    ),
    ("load-size-not-checked", _READER, "if (size != file.size)", "if (false)", "Load.AFileThatHasGrownIsDamaged"),
    (
        "load-manifest-not-checked",
        _MANIFEST,
        "hash_bytes(rest.data(), int64_t(rest.size())) == expected",
        "true || expected == 0",
        "Manifest.EveryDamagedByteIsNoticed",
    ),
    (
        "load-intersection-off-by-one",
        _READER,
        "intersect(slice.elements, wanted.elements);",
        "intersect(slice.elements, {wanted.elements.begin, wanted.elements.end - 1});",
        "Checkpoint.AnyNumberOfRanksReadsWhatAnyNumberWrote",
    ),
    (
        "load-wrong-piece-offset",
        _READER,
        "slice.offset + i * kPieceBytes",
        "slice.offset",
        "Checkpoint.LargeTensorsHaveSeveralPieces",
    ),
    (
        "load-piece-from-its-begin",
        _READER,
        "convert(bytes + skipped,",
        "convert(bytes + 0 * skipped,",
        "Checkpoint.LargeTensorsHaveSeveralPieces:Checkpoint.AnyNumberOfRanksReadsWhatAnyNumberWrote",
    ),
    (
        "load-alias-not-found",
        _MANIFEST,
        "    for (const std::string& alias : tensor.aliases) records_[{alias, tensor.kind}] = &tensor;\n",
        "",
        "Manifest.RoundTrip",
    ),
    (
        "load-oldest-first",
        _STORE,
        "a.step > b.step",
        "a.step < b.step",
        "Checkpoint.NewestCountsAndOldOnesGo",
    ),
    (
        "load-takes-what-is-not-latest",
        _LOAD,
        "    if (found.latest) tags.push_back(found.tag);",
        "    tags.push_back(found.tag);",
        "Commit.ACheckpointThatIsNotTheNewestIsDurableToo",
    ),
    (
        "load-strict-ignored",
        _LOAD,
        "if (request_.tag || request_.strict) throw",
        "if (request_.tag) throw",
        "Checkpoint.DamageIsNamedAndPassedOverByAllRanks",
    ),
    (
        "load-any-file-name",
        _MANIFEST,
        "ZS_CHECK(plain && ",
        "ZS_CHECK((plain || true) && ",
        "Manifest.HostileContents",
    ),
    (
        "save-replaces-anything",
        _STORE,
        "kind == FileStatus::Kind::kDirectory && is_checkpoint(root.open_directory(tag))",
        "true",
        "Commit.ReplacesNothingButCheckpoints",
    ),
    (
        "save-replaces-any-manifest",
        _STORE,
        "  return starts_like_manifest(",
        "  return true || starts_like_manifest(",
        "Commit.ReplacesNothingButCheckpoints",
    ),
    (
        "save-refuses-late",
        _SAVE,
        "    replaces(*root_, request_.tag);",
        "    //",
        "Commit.ReplacesNothingButCheckpoints",
    ),
    (
        "save-fails-when-the-old-one-stays",
        _SAVE,
        "    if (replaced_) attempt([&] { root_->remove_tree(temporary_); });\n",
        "    if (replaced_) root_->remove_tree(temporary_);\n",
        "Commit.AReplacedCheckpointThatCannotBeDeletedFailsNothing",
    ),
    (
        "save-retention-of-a-left-branch",
        _STORE,
        "return found.step > step;",
        "return found.step > step + (int64_t{1} << 40);",
        "Retain.ARunThatHasGoneBackKeepsWhatItSaves",
    ),
    (
        "save-leftovers-of-its-number-stay",
        _PROCESS,
        "return name != process_name();",
        "return false;",
        "Commit.WhatAnEarlierProcessOfTheSameNumberLeftIsSwept",
    ),
    (
        "save-sweeps-itself",
        _PROCESS,
        "return name != process_name();",
        "return true;",
        "Commit.OnlyWhatDeadProcessesOfThisHostLeftIsSwept",
    ),
    (
        "async-joins-in-a-child",
        _ASYNC,
        "if (::getpid() != process_)",
        "if (false)",
        "AsyncSaver.AForkedChildLeavesItAlone",
    ),
    (
        "export-temporary-stays",
        _FILES,
        "      directory_.remove_tree(temporary_);\n",
        "",
        "Export.ADamagedCheckpointLeavesTheEarlierExport",
    ),
    (
        "export-earlier-stays",
        _FILES,
        "  remove_earlier_export(out, stem, names);\n",
        "",
        "Export.OneFileTakesThePlaceOfSeveral",
    ),
    (
        "load-unreadable-is-absent",
        _STORE,
        "    listing.bad.emplace_back(name, error.what());\n",
        "    static_cast<void>(error);\n",
        "ListStore.WhatCannotBeReadIsNamed",
    ),
    (
        "load-nothing-whole-is-nothing",
        _LOAD,
        "if (tags.empty() && !listing.bad.empty())",
        "if (false)",
        "Load.NothingButDamagedManifestsIsAnError",
    ),
    (
        "load-manifests-not-compared",
        _LOAD,
        "      if (mine == first) return;",
        "      if (mine == first || !first.empty()) return;",
        "LoadAgreement.RanksThatSeeOtherFilesAreNamed",
    ),
    (
        "load-own-mistake-is-damage",
        _LOAD,
        """together(comm_, "load", [&] { wanted = request_.wanted(reader_->manifest(), reader_->index()); });""",
        """
    const auto choose = [&] { wanted = request_.wanted(reader_->manifest(), reader_->index()); };
    if (const auto damage = damage_in(choose)) return damage;""",
        "LoadAgreement.AnErrorOfOneRankAloneIsEverybodys",
    ),
    (
        "load-requests-not-compared",
        "src/checkpoint/agreement.cpp",
        "ZS_CHECK(mine == first,",
        "ZS_CHECK(mine == first || !first.empty(),",
        "LoadAgreement.RanksThatAskForDifferentThingsAllFailAlike",
    ),
    (
        "load-no-ranks",
        _MANIFEST,
        "ZS_CHECK(manifest.world_size() > 0,",
        "ZS_CHECK(manifest.world_size() >= 0,",
        "Manifest.HostileContents",
    ),
]

_GOES_ON = "EngineCheckpoint.TrainingGoesOnBitByBitAtAnyStage"

ENGINE = [
    ("engine-no-moments", _ENGINE, "for (size_t slot = 0; slot <", "for (size_t slot = 1; slot <", _GOES_ON),
    (
        "engine-no-update-counts",
        _ENGINE,
        "if (saved) steps[j] = saved->updates;",
        "(void)saved, (void)steps;",
        _GOES_ON,
    ),
    ("engine-masters-not-published", _ENGINE, "  optimizer->publish_masters();\n", "", _GOES_ON),
    ("engine-not-refreshed", _ENGINE, "if (options.config.stage > 0) executor->refresh();", "", _GOES_ON),
    (
        "engine-parameters-without-masters",
        _ENGINE,
        "master.defined() ? master :",
        "master.defined() && false ? master :",
        _GOES_ON,
    ),
    (
        "engine-stage-0-loads-its-share",
        _ENGINE,
        "const bool all = whole && purpose_",
        "const bool all = whole && false && purpose_",
        _GOES_ON,
    ),
    (
        "engine-begins-a-save-alone",
        _ENGINE,
        '  run_together([&] {\n    if (has_pending_gradients())\n      throw StateError(\n          "save_',
        "  const auto alone = [](const auto& step) { step(); };\n"
        '  alone([&] {\n    if (has_pending_gradients())\n      throw StateError(\n          "save_',
        "EngineCheckpoint.ASaveThatOneRankCannotBeginFailsOnAll",
    ),
    (
        "engine-any-loss-scale",
        _ENGINE,
        'if (!core.value("loss_scale_dynamic", iteration > 0)) return;',
        "",
        "EngineCheckpoint.ALossScaleGoesFromDynamicToDynamic",
    ),
    (
        "engine-no-loss-scale",
        _ENGINE,
        'if (!core.value("loss_scale_dynamic", iteration > 0)) return;',
        "if (iteration >= 0) return;",
        "EngineCheckpoint.ALossScaleGoesFromDynamicToDynamic",
    ),
    (
        "engine-on-error-ignored",
        _ENGINE,
        "if (options.config.checkpoint.on_error == CheckpointConfig::OnError::kRaise) throw;",
        "throw;",
        "EngineCheckpoint.OnErrorHoldsWhereverASaveIsWaitedFor",
    ),
    (
        "engine-failed-save-swallowed",
        _ENGINE,
        "if (options.config.checkpoint.on_error == CheckpointConfig::OnError::kRaise) throw;",
        "",
        "EngineCheckpoint.OnErrorHoldsWhereverASaveIsWaitedFor",
    ),
    (
        "engine-load-options-not-compared",
        _ENGINE,
        'load.optimizer ? "with" : "without"',
        '"with"',
        "EngineCheckpoint.RanksMustLoadTheSame",
    ),
    (
        "engine-export-stays-gathered",
        _EXPORT,
        "      engine_.release(units_);\n",
        "",
        "EngineExport.AFailureLeavesNoFileAndNothingGathered",
    ),
    (
        "engine-export-temporary-stays",
        _EXPORT,
        "      directory_->remove_tree(temporary_);\n",
        "",
        "EngineExport.AFailureLeavesNoFileAndNothingGathered",
    ),
    (
        "engine-export-earlier-stays",
        _EXPORT,
        "if (name_.ends_with(kExtension)) remove_earlier_export(*directory_, stem, {name_});",
        "",
        "EngineExport.ReplacesAnExportInSeveralFiles",
    ),
    (
        "engine-buffers-of-rank-0",
        _MODULE,
        "if (rank_ == 0 || differs[i])",
        "if (rank_ == 0 || (differs[i] && false))",
        "ModuleWorlds.EveryRankGoesOnWithItsOwnBuffers",
    ),
]

MUTANTS = [
    *(Mutant(name, file, old, new, "file", test) for name, file, old, new, test in FILE),
    *(Mutant(name, file, old, new, "checkpoint", test) for name, file, old, new, test in CHECKPOINT),
    *(Mutant(name, file, old, new, "engine", test) for name, file, old, new, test in ENGINE),
]
