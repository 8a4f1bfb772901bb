"""What could be forgotten in src/checkpoint and src/file."""

from mutant import Mutant

_WRITER, _DURABLE, _POSIX = "src/file/file_writer.cpp", "src/file/durable.cpp", "src/file/posix_io.cpp"
_SAVE, _STORE, _ASYNC = "src/checkpoint/save.cpp", "src/checkpoint/store.cpp", "src/checkpoint/async_saver.cpp"
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
        "done += result;",
        "done = bytes;",
        "FileWriter.ShortWritesAndInterruptionsChangeNothing",
    ),
    ("file-no-fallocate", _WRITER, "    reserve();\n", "", "FileWriter.AFullDiskIsNoticedBeforeTheFirstByte"),
    (
        "file-background-error-lost",
        _WRITER,
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
        "save-sweeps-the-living",
        _STORE,
        "::kill(pid, 0) != 0 && errno == ESRCH",
        "true",
        "Commit.OnlyWhatDeadProcessesOfThisHostLeftIsSwept",
    ),
    ("async-error-swallowed", _ASYNC, "    error_ = error;\n", "", "AsyncSaver.AnErrorComesOutOnceOnEveryRank"),
    (
        "async-error-for-ever",
        _ASYNC,
        "std::exchange(error_, nullptr)",
        "error_",
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
        "hash_bytes(read, bytes) != slice.hashes[size_t(piece)]",
        "false",
        "Checkpoint.DamageIsNamedAndPassedOverByAllRanks",
    ),
    (
        "load-header-not-checked",
        _READER,
        "hash_bytes(header.data(), record.header_bytes) != record.header_hash",
        "false",
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
        "intersect(slice.elements, elements);",
        "intersect(slice.elements, {elements.begin, elements.end - 1});",
        "Checkpoint.AnyNumberOfRanksReadsWhatAnyNumberWrote",
    ),
    (
        "load-wrong-piece-offset",
        _READER,
        "slice.offset + piece * kPieceBytes",
        "slice.offset",
        "Checkpoint.LargeTensorsHaveSeveralPieces",
    ),
    (
        "load-piece-from-its-begin",
        _READER,
        "convert(read + (at - begin) * width,",
        "convert(read,",
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
        "if (request.tag || request.strict) throw",
        "if (request.tag) throw",
        "Checkpoint.DamageIsNamedAndPassedOverByAllRanks",
    ),
    (
        "load-any-file-name",
        _MANIFEST,
        "ZS_CHECK(plain && ",
        "ZS_CHECK((plain || true) && ",
        "Manifest.HostileContents",
    ),
]

MUTANTS = [
    *(Mutant(name, file, old, new, "file", test) for name, file, old, new, test in FILE),
    *(Mutant(name, file, old, new, "checkpoint", test) for name, file, old, new, test in CHECKPOINT),
]
