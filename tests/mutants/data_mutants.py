"""What files of tokens and the rows made of them could get wrong."""

from mutant import Mutant

_CORPUS, _EPOCH, _WRITER = "lm/data/corpus.cpp", "lm/data/epoch.cpp", "lm/data/token_writer.cpp"
_FORMAT, _FILE = "lm/data/token_format.cpp", "lm/data/token_file.cpp"
_EPOCH_TEST = "Dataset.EveryTokenAndTargetIsOnceInAnEpoch"

_TABLE = [
    (
        "data-last-target-of-a-row-lost",
        _CORPUS,
        "std::min(count + 1, at.length - begin)",
        "std::min(count, at.length - begin)",
        _EPOCH_TEST,
    ),
    (
        "data-mask-of-the-input",
        _CORPUS,
        "at.file->learned(at.begin + begin + i + 1)",
        "at.file->learned(at.begin + begin + i)",
        _EPOCH_TEST,
    ),
    (
        "data-parts-overlap",
        _CORPUS,
        "members_.resize(size_t(held));",
        "members_.resize(size_t(held) + 1);",
        "Dataset.PartsAreDisjointAndComplete",
    ),
    (
        "data-epochs-alike",
        "lm/data/shuffle.h",
        " ^ uint64_t(epoch)",
        "",
        "Dataset.EpochsAndSeedsDifferAndAnUnshuffledOneDoesNot",
    ),
    (
        "data-rows-not-shuffled",
        _EPOCH,
        "    shuffle(std::span(row_order_), generator(options.seed, epoch, Purpose::kRows));\n",
        "",
        "Dataset.RowsOfOneDocumentAreScattered",
    ),
    (
        "data-rows-not-filled",
        _EPOCH,
        "open.lower_bound(length)",
        "open.lower_bound(length_)",
        "Dataset.IsAsTightAsItCanBeOnASimpleCase",
    ),
    (
        "data-ids-not-checked",
        _CORPUS,
        "limit_of(info, options_.vocab_size));\n  for",
        "kAllIds);\n  for",
        "Dataset.IdsOfLargeForeignFilesAreCheckedWhenTheyAreRead",
    ),
    (
        "data-index-trusted",
        _FILE,
        "end > uint64_t(before) && ",
        "",
        "TokenFile.HostileIndexesAreRefused",
    ),
    (
        "data-index-not-hashed",
        _FILE,
        "ZS_CHECK(piece_is_whole(piece), info_.path",
        "ZS_CHECK(piece >= 0, info_.path",
        "TokenFile.EveryCutAndEveryChangedByteIsNoticed",
    ),
    (
        "data-counts-trusted",
        _FORMAT,
        '"number of tokens", 1, size / foot.id_bytes)',
        '"number of tokens", 1, INT64_MAX)',
        "TokenFile.HostileFeetAreRefused",
    ),
    (
        "data-temporary-stays",
        _WRITER,
        "    for (const std::string& name : temporaries_) directory_.io().unlink_at(directory_.fd(), name);\n",
        "",
        "TokenFileWriter.AnyFailingCallLeavesTheOldOrTheNewFileAndNothingElse",
    ),
    (
        "data-name-before-contents",
        _WRITER,
        "    main_->finish();\n    directory_.rename(temporaries_.front(), name_);\n",
        "    directory_.rename(temporaries_.front(), name_);\n    main_->finish();\n",
        "TokenFileWriter.IsDurableBeforeItsNameIsAndThenItsName",
    ),
    (
        "data-shared-token-not-learned",
        "lm/data/chat_template.cpp",
        "std::mismatch(ids.begin(), ids.end(), before.begin(), before.end()).first - ids.begin()",
        "before.size()",
        "ChatTemplate.ATokenAcrossTheBoundaryBelongsToTheAnswer",
    ),
    (
        "data-special-tokens-in-texts",
        "lm/data/records.cpp",
        "tokenizer_.encode(text, true, false)",
        "tokenizer_.encode(text, true, true)",
        "Tokenize.TextInADocumentNeverBecomesASpecialToken",
    ),
]

MUTANTS = [Mutant(name, file, old, new, "data", test) for name, file, old, new, test in _TABLE]
