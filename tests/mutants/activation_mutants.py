"""What could be forgotten about inputs of checkpointed layers that lie in files or on the host."""

import tile_mutants
from mutant import Mutant

_STORE, _SPACE, _HOST = "src/file/record_store.cpp", "src/file/free_space.cpp", "src/activations/host_activations.cpp"
_KNOWN = "src/activations/kept_tensors.h"
_PYTHON, _RECOMPUTE = "python/zeroshard/activations.py", "lm/ops/recompute.cpp"
_ORDER, _STEPS = "RecordStore.GivesBackWhatWasPut", "RecordStore.TheFileDoesNotGrowFromStepToStep"

RECORDS = [
    ("records-dropped-while-written", _STORE, "      wait_for_writes(id);\n      for", "      for", _ORDER),
    ("records-read-before-written", _STORE, "  wait_for_writes(id);\n  slot.record", "  slot.record", _ORDER),
    (
        "records-buffer-filled-while-written",
        _STORE,
        "    wait_for(owner(buffer));\n    const",
        "    const",
        "RecordStore.ABufferIsFilledAgainWhenItIsWritten",
    ),
    (
        "records-not-read-ahead",
        _STORE,
        "    read_ahead_of(id, slot);\n",
        "",
        "RecordStore.ReadsTheRecordBeforeAhead",
    ),
    (
        "records-read-in-short-blocks",
        _STORE,
        "  transfer.block_bytes = std::max(part, options_.block_bytes);\n",
        "",
        "RecordStore.ReadsALongRecordWithoutBeingAskedAgain",
    ),
    (
        "records-space-lost",
        _STORE,
        "      files_[found->second.file].space.give_back(found->second.offset, found->second.padded());\n",
        "",
        _STEPS,
    ),
    (
        "records-space-not-joined",
        _SPACE,
        "if (before->first + before->second == offset) {",
        "if (before == next) {",
        "FreeSpace.*",
    ),
    (
        "records-failure-untold",
        _STORE,
        "  if (on_failure_) std::exchange(on_failure_, {})(failure_);\n",
        "",
        "RecordStore.AnyFailingRequestIsToldAndEndsTheStore",
    ),
    (
        "records-damage-unseen",
        _STORE,
        "    check(found->second, slot->memory.get());\n",
        "",
        "RecordStore.AFlippedBitIsFound",
    ),
    (
        "records-cancelled-request-fails",
        "src/file/transfer_queue.cpp",
        "result.result == -ECANCELED || ",
        "",
        "RecordStore.ACancelledRequestIsGivenAgain",
    ),
]

# Beside devices. (name, file, old, new, gtest filter)
DEVICES = [
    (
        "kept-block-read-before-the-copy",
        _HOST,
        "    record.block->copied->synchronize();\n",
        "",
        "*DeviceActivations.ComeBackAsTheyWere*",
    ),
    (
        "kept-block-filled-while-copied",
        _HOST,
        "    if (block.copied) block.copied->synchronize();\n",
        "",
        "*DeviceActivations.ComeBackAsTheyWere*",
    ),
    (
        "kept-though-changed",
        _HOST,
        "if (version_.current_version() != kept_version_)",
        "if (false)",
        "*DeviceActivations.AreKeptOnce*",
    ),
    (
        "kept-under-an-old-version",
        _KNOWN,
        " || known.version != uint32_t(tensor._version())",
        "",
        "*DeviceActivations.AreKeptOnce*",
    ),
    (
        "kept-of-a-freed-tensor",
        _KNOWN,
        "      if (known.storage._unsafe_get_target() != tensor.storage().unsafeGetStorageImpl()) continue;\n",
        "",
        "*DeviceActivations.ATensorAtThePlace*",
    ),
    (
        "kept-in-more-and-more-blocks",
        _HOST,
        "num_blocks_ >= kHostBlocks",
        "num_blocks_ >= 1000",
        "*DeviceActivations.PassThroughAFew*",
    ),
    ("kept-not-copied-ahead", _HOST, "    begin_next(id);\n", "", "*DeviceActivations.PassThroughAFew*"),
    (
        "kept-used-by-a-child",
        _HOST,
        "    if (!process_.is_own())\n      throw",
        "    if (false)\n      throw",
        "*DeviceActivations.AForkedChild*",
    ),
]

MUTANTS = [Mutant(name, file, old, new, "file", test) for name, file, old, new, test in RECORDS]
MUTANTS += [Mutant(name, file, old, new, "accelerator", test) for name, file, old, new, test in DEVICES]
MUTANTS += tile_mutants.MUTANTS
MUTANTS += [
    Mutant(
        "recompute-input-kept-on",
        _RECOMPUTE,
        "    if (!torch::autograd::get_current_graph_task_keep_graph()) again.input = [] { return at::Tensor(); };\n",
        "",
        "ops",
        "Recompute.TheInputMayBeKeptElsewhere",
    ),
    Mutant(
        "python-activations-of-inner-parts",
        _PYTHON,
        "if keeper is None or _thread.recomputes or not torch.is_grad_enabled():",
        "if keeper is None or not torch.is_grad_enabled():",
        "python",
        "test_parts_within_parts_keep_what_the_outer_ones_need",
    ),
    Mutant(
        "python-activations-with-masks",
        _PYTHON,
        "type(tensor) is not torch.Tensor or not tensor.requires_grad or",
        "type(tensor) is not torch.Tensor or",
        "python",
        "test_inputs_come_back_as_they_lay_and_are_kept_once",
    ),
    Mutant(
        "python-activations-of-the-engine-before",
        _PYTHON,
        "elif function.keeper() is not self:",
        "elif False:",
        "python",
        "test_a_model_may_outlive_its_engine",
    ),
]
