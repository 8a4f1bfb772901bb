"""What could be forgotten where work on a device is given to several streams."""

from mutant import Mutant

_UNIT = "src/unit/unit.cpp"
_BUCKET = "src/reduce/grad_bucket.cpp"
_TRAINING = "*DeviceTraining.StreamsOfTheUsers*:*DeviceTraining.GivesTheCpus*"
_WATCH = "src/comm_c10d/device_watch.cpp"
_PROGRAMS = {"DeviceSquares": "device", "DeviceWatch": "comm_c10d", "GroupBeside": "comm_c10d"}
_ONCE = "*DeviceTraining.TheHostWaitsOnceAStep*"
_SAVED = "*DeviceCheckpoint.HasWhatTheStateWas*"
_FAILED = "*DeviceCheckpoint.EveryFailingFileCall*"
_CHUNKS = "*DeviceCheckpoint.UploadsGoThrough*"
_COPIES, _SAVER, _UPLOADS = (
    "src/checkpoint_torch/state_data.cpp",
    "src/checkpoint/async_saver.cpp",
    "src/checkpoint/uploads.cpp",
)

_TABLE = [
    (
        "gather-into-a-slot-in-use",
        _UNIT,
        "  gathers_.shard_writes.take();\n  slot_->uses().take();\n",
        "  gathers_.shard_writes.take();\n",
        _TRAINING,
    ),
    (
        "gather-before-the-update",
        _UNIT,
        "  gathers_.shard_writes.take();\n  slot_->uses().take();\n",
        "  slot_->uses().take();\n",
        _TRAINING,
    ),
    (
        "readers-forgotten",
        _UNIT,
        "  ready_.take();\n  if (slot_) slot_->uses().share();\n",
        "  ready_.take();\n",
        _TRAINING,
    ),
    (
        "compute-before-the-gather",
        _UNIT,
        "    for (const auto& work : pending->works) work->wait();\n    attach",
        "    attach",
        _TRAINING,
    ),
    (
        "exchange-before-the-gradients",
        _BUCKET,
        "  uses(filling.slot).take();\n  pack_waiting",
        "  pack_waiting",
        _TRAINING,
    ),
    (
        "packed-over-an-exchange",
        _BUCKET,
        "    uses(filling.slot).take();\n    if (filling",
        "    if (filling",
        "*DeviceTraining.RingsOfFew*",
    ),
    ("sum-before-the-exchange", _BUCKET, "    in_flight.exchange->wait();\n", "", _TRAINING),
    ("step-before-the-sums", "src/reduce/reducer.cpp", "  stream_.join();\n", "", _TRAINING),
    (
        "exchange-left-with-its-memory",
        "src/reduce/reducer.cpp",
        "buckets_[index].await_exchange();",
        "static_cast<void>(index);",
        "*DeviceTraining.AnEngineGoesWhileGradients*",
    ),
    (
        "step-writes-what-is-gathered-ahead",
        "src/engine/step.cpp",
        "  executor_.end_gathers_ahead();\n  reducer_.gather_reduced();\n",
        "  reducer_.gather_reduced();\n",
        "*DeviceTraining.AForwardWithout*",
    ),
    ("streams-never-wait", "src/device/streams.cpp", "      use.event.block(current);\n", "", _TRAINING),
    (
        "host-reads-the-device",
        "src/device/device_squares.cpp",
        "  const at::Tensor host = limbs.cpu();\n",
        "  const at::Tensor& host = limbs;\n",
        _TRAINING,
    ),
    (
        "host-waits-for-the-pass",
        "src/engine/pass.cpp",
        '  ranks_.compare_histories("end of backward");\n',
        '  ranks_.compare_histories("end of backward");\n  reducer_.squares();\n',
        _ONCE,
    ),
    (
        "histories-not-compared",
        "src/engine/consensus.cpp",
        "if (words[2 * i] != -words[2 * i + 1]) ",
        "if (words[2 * i] == -words[2 * i + 1] - 1) ",
        "DeviceGroup.RanksThatCalledOther*",
    ),
    (
        "gradient-freed-while-it-waits",
        _BUCKET,
        "  for (const math::Packed& waiting : filling.waiting) outlive_current_stream(waiting.in);\n",
        "",
        "DeviceReducer.PacksAGradientThatWaited*",
    ),
    (
        "gradients-packed-one-by-one",
        _BUCKET,
        "filling.waiting_bytes + bytes > kWaitingBytes",
        "filling.waiting_bytes + bytes > 0",
        _ONCE,
    ),
    (
        "gradients-of-many-buckets-wait",
        "src/reduce/reducer.cpp",
        "before != index) buckets_[before].pack();",
        "before != index) {}",
        "*DeviceMemory.GradientsOfOneBucket*",
    ),
    (
        "all-states-made-before-the-model-is-freed",
        "src/engine/engine_build.cpp",
        "    if (!ranks.device.is_cpu()) memory.groups->add_unit();\n",
        "    for (size_t v = 0; u == 0 && v < plan.layouts.size(); ++v)\n"
        "      if (!ranks.device.is_cpu()) memory.groups->add_unit();\n",
        "*DeviceMemory.BuildingAnEngine*",
    ),
    (
        "device-asked-for-addresses",
        "src/device/flat_buffer.cpp",
        "      .target_device(device)\n",
        "",
        "DeviceBuffers.AskNoDevice*",
    ),
    (
        "device-without-an-index",
        "src/engine/engine_plan.cpp",
        "  options.device = with_index(options.device);\n",
        "",
        "DeviceBuffers.AnEngineTakes*",
    ),
    (
        "slot-filled-while-it-is-zeroed",
        "src/device/slot_ring.h",
        "      uses_.share();\n      uses_.end();\n",
        "",
        "*DeviceTraining.MoreUnitsAreHeld*",
    ),
    (
        "gather-before-the-last-update",
        "src/engine/update.cpp",
        "  memory_.gathers.after_current_stream();\n",
        "",
        "*DeviceTraining.AnUpdateComes*",
    ),
    (
        "gather-before-weights-are-set",
        "src/engine/engine_params.cpp",
        "  impl.memory->gathers.after_current_stream();\n",
        "",
        "*DeviceTraining.WeightsThatAreSet*",
    ),
    (
        "sum-before-the-update",
        _BUCKET,
        "  } else {\n    uses(slot).share();",
        "  } else {\n",
        "*DeviceTraining.AUnitWithout*",
    ),
    (
        "gather-ahead-left-open",
        _UNIT,
        "      for (const auto& work : pending->works) work->wait();\n      slot_->uses().share();\n",
        "",
        "*DeviceTraining.AnEngineGoes*",
    ),
    (
        "device-not-told-of-the-host",
        "src/comm/direct_core.cpp",
        "  if (options_.failure) options_.failure->set(failure_);\n",
        "",
        "DeviceGroup.AFailureOnTheHost*",
    ),
    (
        "nobody-watches-the-device",
        "src/comm_c10d/c10d_comm.cpp",
        "  if (core_->world_size() > 1) core_->watch(question_to(*host_));\n",
        "",
        "WatchedDevice.ARankThatGathersAnother*",
    ),
    (
        "two-communicators-for-one-queue",
        "src/world/world.cpp",
        "  if (!has_one_queue(*gather_, device_)) ",
        "  ",
        "OneQueue.AWorldHasOne*",
    ),
    (
        "who-waits-for-nothing-does-not-tell",
        _WATCH,
        "  } else if (news.asked && !comm_.failure->happened()) {\n",
        "  } else if (news.asked && comm_.failure->happened()) {\n",
        "DeviceWatch.NamesBothCalls*",
    ),
    (
        "the-device-is-watched-beside-the-engine",
        _WATCH,
        "  if (!op || op->seq != stuck_ || attended_ > 0) {\n",
        "  if (!op || op->seq != stuck_) {\n",
        "DeviceWatch.LeavesTheDevice*",
    ),
    (
        "groups-beside-are-counted-by-each-rank",
        "src/comm_c10d/group_beside.cpp",
        "    for (const std::string& text : texts_) hash",
        "    for (const std::string& text : {texts_[rank_]}) hash",
        "GroupBeside.ATryAfter*",
    ),
    (
        "a-rank-that-begins-again-is-missed",
        "src/comm_c10d/group_beside.cpp",
        "read_cards(/*again=*/result.valid())",
        "read_cards(/*again=*/false)",
        "GroupBeside.ARankThatBeginsAgain*",
    ),
    (
        "blocks-added-by-rows",
        "src/device/device_squares.cpp",
        "limb.add(2), high.bitwise_right_shift(32)",
        "limb.add(1), high.bitwise_right_shift(32)",
        "DeviceSquares.*",
    ),
    ("update-before-the-copies", "src/store/storage.cpp", ": uses_.take()", ": uses_.share()", _SAVED),
    (
        "weights-change-before-the-copies",
        _COPIES,
        "    if (order == Order::kBeforeLater) mover_.stream().join();\n",
        "",
        _SAVED,
    ),
    ("copies-before-the-update", _COPIES, "    mover_.follow();\n", "", _SAVED),
    (
        "written-before-it-is-copied",
        _SAVER,
        "    lock.unlock();\n    mark.wait();\n    lock.lock();\n",
        "",
        "*DeviceCheckpoint.AnEngineMayGo*",
    ),
    ("save-waits-for-the-device", _SAVER, "copies_->mark()});\n", "copies_->mark()}), copies_->mark()();\n", _SAVED),
    ("save-ends-before-its-copies", _SAVER, "    await_copies();\n", "", _FAILED),
    ("chunk-filled-while-it-is-copied", _UPLOADS, "  await(chunk);\n  return", "  return", _CHUNKS),
    ("chunk-freed-while-it-is-copied", _UPLOADS, "    attempt([&] { await(chunk); },", "    attempt([&] {},", _CHUNKS),
    ("last-chunk-not-sent", "src/checkpoint/load.cpp", "uploader->finish();", ";", "*DeviceCheckpoint.GoesAround*"),
    (
        "memory-freed-under-another-stream",
        "src/device/flat_buffer.cpp",
        "  free_after_current_stream(std::move(owned_));\n",
        "  owned_ = at::Tensor();\n",
        "FlatBuffer.GoesUnder*",
    ),
]

# The front, with two ranks on devices.
_PYTHON = [
    (
        "front-knows-cuda-alone",
        "python/zeroshard/distributed.py",
        "    kind = torch.accelerator.current_accelerator(check_available=True)\n",
        '    kind = torch.device("cuda") if torch.cuda.is_available() else None\n',
        "tests/python/units/test_models.py::test_gathered_reads_and_writes[1-late]",
    ),
    (
        "groups-of-the-first-device",
        "python/zeroshard/meeting.py",
        "                torch.accelerator.set_device_index(device)\n",
        "                pass\n",
        "tests/python/units/test_models.py::test_gathered_writes_reach_the_masters[1-late]",
    ),
]

MUTANTS = [
    Mutant(name, file, old, new, _PROGRAMS.get(test.split(".")[0], "accelerator"), test)
    for name, file, old, new, test in _TABLE
] + [Mutant(name, file, old, new, "python", test) for name, file, old, new, test in _PYTHON]
