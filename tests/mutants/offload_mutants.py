"""What could be forgotten where gradients go to the host, and parameters come from there."""

from mutant import Mutant

_EXIT, _REDUCED = "src/reduce/gradient_exit.cpp", "src/reduce/reduced_gradients.cpp"
_MOVER, _GROUP = "src/device/mover.cpp", "src/group/sharded_group.cpp"
_BITS, _AGAIN = "*Placements.GiveTheSameBitsInThe*", "*Placements.UseBuffersAgain*"
_GOES = "*Placements.LetAnEngineGo*"
_GRADIENT_FILES = "*Placements*GradientsInFiles*"

_LATE, _ENGINE_LATE, _LATE_BITS = (
    "src/optim/delayed_update.cpp",
    "src/engine/engine.cpp",
    "*DelayedUpdates.AreThoseOfTheDefinition*",
)

_TABLE = [
    (
        "gradients-replaced-while-read",
        _REDUCED,
        "  hold_->await_readers();\n",
        "",
        "GradBucket.NewGradientsWaitForReadersOfTheOldOnes",
    ),
    (
        "late-parameters-under-a-pass",
        _LATE,
        "  mover_.follow();  // the copies wait for work of the current stream that still reads the old parameters\n",
        "",
        "*DelayedUpdates.ComeAfterAnEvaluation*",
    ),
    ("late-parameters-sent-too-late", _LATE, "    if (own.sent) own.sent->synchronize();\n", "", _LATE_BITS),
    (
        "late-update-over-a-load",
        _GROUP,
        "    await_copies();  // another stream than the mover's may have made the last copies\n",
        "",
        "*DelayedUpdates.AreOverwrittenByALoad*",
    ),
    (
        "late-update-over-a-write",
        "src/engine/step.cpp",
        "any_written() || (update_.is_pending() && writes_.wrote_late())",
        "any_written()",
        "*DelayedUpdates.RefuseWritesThatWouldBeLost*",
    ),
    (
        "late-update-within-a-pass",
        _ENGINE_LATE,
        "  pass->refuse_earlier_forwards();\n",
        "",
        "*DelayedUpdates.DoNotComeBetweenForwardAndBackward*",
    ),
    (
        "late-update-after-a-save",
        "src/engine/engine_checkpoint.cpp",
        "    publish_update();\n",
        "",
        "*DelayedUpdates.GoOnFromACheckpoint*",
    ),
    (
        "late-update-over-weights-that-are-set",
        "src/engine/engine_params.cpp",
        "  impl.update->replace(group, positions, flat);\n",
        "",
        "*DelayedUpdates.WeightsThatAreSetStay*",
    ),
    ("gradient-used-before-it-arrived", _REDUCED, "  if (arrived_) arrived_->synchronize();\n", "", _BITS),
    ("copied-before-the-sum", _EXIT, "  buffer_->uses.take();\n  mover_", "  buffer_->uses.share();\n  mover_", _BITS),
    (
        "sum-over-what-is-copied",
        _EXIT,
        "mover_.stream());\n  }\n  buffer_->uses.take();\n",
        "mover_.stream());\n  }\n",
        _AGAIN,
    ),
    (
        "sums-come-back-too-early",
        _EXIT,
        "    buffer_->uses.take();\n    to.begin_read",
        "    to.begin_read",
        "*Placements.AccumulateGradients*",
    ),
    (
        "sums-do-not-come-back",
        _EXIT,
        "  if (has_values && to",
        "  if (!has_values && to",
        "*Placements.AccumulateGradients*",
    ),
    (
        "sum-waits-for-a-later-copy",
        _EXIT,
        "  buffer_->uses.end();  // the next sum in this buffer waits for this copy, but not for later copies\n",
        "",
        "GradientExit.ASumDoesNotWait*",
    ),
    (
        "file-before-the-copy",
        _EXIT,
        "    mover_.wait();\n",
        "",
        _GRADIENT_FILES,
    ),
    (
        "last-bucket-not-in-the-file",
        "src/reduce/reducer.cpp",
        "  stream_.join();\n  if (exit_) exit_->settle();\n",
        "  stream_.join();\n",
        _GRADIENT_FILES,
    ),
    ("file-before-the-sum", _EXIT, "  pending.buffer->uses.take();\n", "", _GRADIENT_FILES),
    ("squares-before-the-sums", "src/reduce/reducer.cpp", "  stream_.join();\n", "", _BITS),
    (
        "update-in-spite-of-the-norm",
        "src/engine/step.cpp",
        "  if (result.applied) apply();\n",
        "  apply();\n",
        "*Placements.SkipStepsThatOverflow*",
    ),
    (
        "gather-before-the-parameters",
        _GROUP,
        "  if (writing_ && is_resident()) current_stream_waits(*writing_, options_.device);\n",
        "",
        _BITS,
    ),
    (
        "step-returns-before-the-parameters",
        "src/unit/unit.cpp",
        "  for (const ShardedGroup& group : groups_) group.await_copies();\n",
        "",
        _BITS,
    ),
    ("slot-filled-too-early", _MOVER, "    if (piece.slot->last) piece.slot->last->synchronize();\n", "", _AGAIN),
    (
        "parameters-used-before-they-arrived",
        _MOVER,
        "    if (piece.arrived) piece.arrived->synchronize();\n",
        "",
        "*Placements.CountWhatUsersWrite*",
    ),
    (
        "parameters-fetched-though-nobody-wrote",
        _GROUP,
        "  return checksum_->is_of(updated_memory());\n",
        "  return false;\n",
        "*UpdatesByTheHost.*",
    ),
    (
        "checksum-beside-the-copies",
        _GROUP,
        "  mover.follow();  // the device may have updated some of the elements on the current stream\n"
        "  const SideStream::Scope scope(mover.stream());\n",
        "",
        _BITS,
    ),
    (
        "write-before-the-first-gradient-lost",
        "src/optim/sharded_optimizer.cpp",
        "  if (!may_be_written || updates_all(group, has_grad)) group.remember_parameters();\n",
        "  group.remember_parameters();\n",
        "*Placements.CountWhatUsersWrite*",
    ),
    ("freed-while-gradients-go", _MOVER, "  try {\n    wait();\n", "  try {\n", _GOES),
    (
        "shard-at-the-wrong-place",
        "src/unit/unit.cpp",
        "group.begin_copy_of_shard(place, ",
        "group.begin_copy_of_shard(full.data, ",
        "*Placements.GiveTheSameBitsInThe*AllOnHost*",
    ),
    (
        "shard-copied-without-the-gathers-order",
        "src/store/array.cpp",
        "  const SideStream::Scope scope(stream);\n",
        "  const SideStream other(device);\n  const SideStream::Scope scope(other);\n",
        "*Placements.GiveTheSameBitsInThe*AllOnHost*",
    ),
    (
        "shard-written-while-it-is-copied",
        _GROUP,
        "  reading_->synchronize();\n",
        "",
        "*Placements.LoadWhatOthersSave*AllOnHost*",
    ),
    (
        "shard-freed-while-it-is-copied",
        "src/group/groups.cpp",
        "Groups::~Groups() {\n  try {\n    await_copies();\n",
        "Groups::~Groups() {\n  try {\n",
        "*Placements.LetAnEngineGo*AllOnHost*",
    ),
    (
        "fp32-parameters-leave-their-masters",
        "src/placement/placement.cpp",
        "  if (are_masters && device_updates) return Tier::kDevice;\n",
        "",
        "*Placements.GiveTheSameBitsInThe*ParametersOnHost*",
    ),
]
_ALONE = "*Placements."
_TABLE += [
    (
        "gather-before-the-device-has-sent",
        _GROUP,
        "    if (writing_) current_stream_waits(*writing_, options_.device);\n",
        "",
        _ALONE + "GiveTheSameBitsInThe*/Parameters*",
    ),
    (
        "host-reads-before-the-device-has-sent",
        _GROUP,
        "    writing_->synchronize();\n",
        "",
        _ALONE + "HaveTheWeightsOf*/Parameters*",
    ),
    ("sent-before-the-update", _MOVER, "    follow();\n", "", _ALONE + "GiveTheSameBitsInThe*/Parameters*"),
    ("updated-over-what-is-sent", _MOVER, "  slot.uses.take();\n", "", _ALONE + "UseBuffersAgain*/Parameters*"),
    (
        "buffer-is-nobodys-while-it-is-sent",
        _MOVER,
        "    slot.uses.share();\n",
        "",
        _ALONE + "UseBuffersAgain*/Parameters*",
    ),
]
_TABLE += [
    (
        "host-waits-for-what-the-device-sends",
        _GROUP,
        "  if (first.size() == 0) return;\n",
        "  if (first.size() == 0) return;\n  await_copies();\n",
        "*LazySharesOnHost.*",
    ),
    (
        "rest-of-a-shard-is-not-sent",
        _GROUP,
        "  if (rest.size() > 0) lend_to_device(rest, access, ways, lend_states, use);\n",
        "",
        "*Placements.LoadWhatOthersSave*Shared*",
    ),
]

_FILES = "*Placements.GiveTheSameBitsInThe*InFiles*"
_TABLE += [
    (
        "masters-stay-where-states-are-in-files",
        "src/placement/placement.cpp",
        "(state_tier == Tier::kHost || (state_tier == Tier::kFile && options.on_device));",
        "state_tier == Tier::kHost;",
        _FILES,
    ),
]
_FETCH, _LENDS = "src/group/gradient_fetch.cpp", "*GradientFetchTest.LendsWhatWas*"
_TABLE += [
    (
        "piece-used-before-it-arrived",
        _FETCH,
        "  piece.arrived.synchronize();\n  return piece;\n",
        "  return piece;\n",
        _LENDS,
    ),
    (
        "piece-copied-over-one-in-use",
        _FETCH,
        "under_way_.size() < mover_.num_slots()",
        "under_way_.size() <= mover_.num_slots()",
        _LENDS,
    ),
    (
        "written-while-they-are-fetched",
        _FETCH,
        "  for (Piece& piece : under_way_) piece.arrived.synchronize();\n",
        "",
        "*GradientFetchTest.EndsBefore*",
    ),
    (
        "rest-of-fp32-has-other-masters",
        "src/group/groups.cpp",
        "parameters.view(Range{border, all} + first)",
        "parameters.view(Range{border, all} + first).clone()",
        "*Placements.LoadWhatOthersSave*Shared*",
    ),
    (
        "users-write-while-a-rest-is-saved",
        "src/engine/saves.cpp",
        "are_parameters = state == kMasterWeights &&",
        "are_parameters = state < kMasterWeights &&",
        "*Placements.SaveWhatTheStateWas*Shared*",
    ),
]
_ARRAY, _PLACE = "src/store/array.cpp", "src/placement/placement.cpp"
_BLOCKS = "Place.AShareOfTheStatesLeavesInWholeBlocks"
_SHARES = [
    (
        "border-one-block-too-early",
        "src/group/groups.cpp",
        "border = place.states_on(tier, layout);",
        "border = place.states_on(tier, layout) - kBlockNumel;",
        "group",
        "Groups.KeepTheStatesThatDoNotLeave",
    ),
    (
        "rest-begins-at-the-first-element",
        _ARRAY,
        "use(part + border_, columns)",
        "use(part, columns)",
        "group",
        "SplitArray.LookLikeStatesInOnePlace",
    ),
    (
        "rest-is-not-asked",
        _ARRAY,
        "rest_->lend(rest, column, access,",
        "storage_->lend(rest, column, access,",
        "group",
        "SplitArray.AskEachPlaceForWhatItHas",
    ),
    (
        "last-block-lost",
        _PLACE,
        "? all - away : 0;",
        "? std::max<int64_t>(all - away - kBlockNumel, 0) : 0;",
        "placement",
        _BLOCKS,
    ),
    ("share-rounds-down", _PLACE, "std::ceil(", "std::floor(", "placement", _BLOCKS),
    (
        "shares-of-fp32-leave-their-masters",
        _PLACE,
        "(!place.host_updates || state_share < 1);",
        "!place.host_updates;",
        "placement",
        "Place.ParametersLeaveWithAShare*",
    ),
    (
        "buffers-for-what-the-host-updates",
        "src/plan/buffer_sizes.cpp",
        "place.parameters.numel(layout) - place.numel_of_host(layout), place",
        "place.parameters.numel(layout), place",
        "plan",
        "PlanOffload.ParametersLeaveWithAShare*",
    ),
    (
        "files-for-all-states",
        "src/plan/swap_plan.cpp",
        "place.states_on(Tier::kFile, layout), slots",
        "place.moments.numel(layout), slots",
        "group",
        "FileStatesTest.TheFilesHaveTheShareOfAGroup",
    ),
]

MUTANTS = [Mutant(f"offload-{name}", file, old, new, "accelerator", test) for name, file, old, new, test in _TABLE]
MUTANTS += [Mutant(f"offload-{name}", *rest) for name, *rest in _SHARES]
