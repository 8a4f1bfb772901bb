"""What a backward that failed, or that needs other units than other ranks' do, could leave behind."""

from mutant import Mutant

_BACKWARD, _EXECUTOR, _BUCKET, _REDUCED = (
    "src/engine/pass.cpp",
    "src/engine/executor.cpp",
    "src/reduce/grad_bucket.cpp",
    "src/reduce/reduced_gradients.h",
)
_AGAIN, _CLEARED = "FailedBackward.TheStepBeginsAgainWithTheSameBits", "FailedBackward.WhatWasClearedIsInNoStep"

MUTANTS = [
    Mutant(name, file, old, new, "world", test)
    for name, file, old, new, test in [
        ("failed-backward-untold", _BACKWARD, "if (words[0] > 0) {", "if (!failure.empty()) {", _AGAIN),
        ("failed-pass-left-early", _EXECUTOR, "  begin_backward();\n  end_units_of_backward();", "", _AGAIN),
        ("failed-local-sum-kept", _BUCKET, "  own_sum_.discard();\n", "", _CLEARED),
        ("failed-gradients-kept", _BUCKET, "  end_step();\n  return slot;", "  return slot;", _CLEARED),
        ("norm-of-the-step-before", _REDUCED, "= false;\n    squares_ = ExactSum();", "= false;", _CLEARED),
        (
            "other-ranks-units-not-gathered",
            _EXECUTOR,
            "while (!order_->upcoming().empty()) stand_in_for(order_->upcoming().front());",
            "",
            "Training.ARankThatNeedsTheLastUnitAloneTakesPartInTheRest",
        ),
        (
            "next-unit-not-agreed",
            _EXECUTOR,
            "while (units_[index]->is_sharded() && agree_on_next(index) != index) {\n  }",
            "",
            _AGAIN,
        ),
    ]
]

MUTANTS += [
    Mutant(
        "freed-under-a-collective",
        "src/device/flat_buffer.cpp",
        " && writer_->still_writes()",
        " && false",
        "device",
        "FlatBuffer.IsLeftToTheProcessWhileACollectiveMayWriteToIt",
    ),
    Mutant(
        "broadcast-into-the-callers-memory",
        "src/comm_c10d/c10d_comm.cpp",
        "  if (core_->device().is_cpu()) return broadcast_by_copy(data, op);\n",
        "",
        "comm_c10d",
        "C10dComm.AFailedCollectiveWritesOnlyWhereItSays",
    ),
    Mutant(
        "sum-into-the-callers-memory",
        "src/comm_c10d/c10d_comm.cpp",
        "sum = core_->device().is_cpu() ? result.clone() : result;",
        "sum = result;",
        "comm_c10d",
        "C10dComm.AFailedCollectiveWritesOnlyWhereItSays",
    ),
    Mutant(
        "collective-left-and-forgotten",
        "src/comm_c10d/c10d_work.h",
        "    if (work_) core_->leave(*work_);\n",
        "",
        "comm_c10d",
        "C10dComm.ACollectiveThatNobodyWaitedForMayWrite",
    ),
    Mutant(
        "rank-0-leaves-at-once",
        "src/world/meeting.cpp",
        "    if (state.rank == 0) await_others(state);\n",
        "",
        "engine",
        "MeetingTest.RankZeroLeavesOnceThoseThatHaveComeKnowWhy",
    ),
    Mutant(
        "rank-0-awaits-the-dead",
        "src/world/meeting.cpp",
        "state_of(process) == ProcessState::kDead",
        "false",
        "engine",
        "MeetingTest.RankZeroAwaitsNobodyWhoHasDied",
    ),
    Mutant(
        "too-late-to-know-why",
        "src/world/meeting.cpp",
        "    state.earlier = note_of_over(state);\n",
        "",
        "engine",
        "MeetingTest.OneThatComesTooLateSaysWhatEndedTheMeeting",
    ),
    Mutant(
        "empty-bucket-before-the-last-use",
        "src/reduce/reducer.cpp",
        "= std::max(uses[unit], 1);",
        "= 1;",
        "reduce",
        "Reducer.AUnitsLastEndLaunchesItsBucketWithoutGradients",
    ),
    Mutant(
        "whole-units-are-waited-for",
        "src/engine/executor.cpp",
        "  end_whole_units(forwards_.take(index));\n",
        "  forwards_.take(index);\n",
        "world",
        "Training.AUseOfAUnitMayEnterTheLossOnSomeRanksAlone",
    ),
]
