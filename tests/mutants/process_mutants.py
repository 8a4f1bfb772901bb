"""What forked children, signals, the ends of process groups and launchers could get wrong."""

from mutant import Mutant

_CORE, _FORKS, _GROUPS = "src/comm/direct_core.cpp", "python/zeroshard/forks.py", "python/zeroshard/group_life.py"

MUTANTS = [
    Mutant(
        "fork-takes-part",
        _CORE,
        '  if (!process_.is_own()) throw CommError(process_.refusal(number_of(rank_), "communicator"));\n',
        "",
        "comm",
        "ForkedChild.IsRefusedByTheCommunicatorOfItsParent",
    ),
    Mutant(
        "fork-frees-memory-of-the-rank",
        "src/comm/shm_memory.cpp",
        "  if (process_.is_own()) own_.free(",
        "  own_.free(",
        "comm",
        "ForkedChild.IsRefusedByTheCommunicatorOfItsParent",
    ),
    Mutant(
        "lock-kept-by-children",
        "src/file/directory_lock.cpp",
        "held->fd.close();",
        "break;",
        "file",
        "DirectoryLock.AForkedChildDoesNotKeepIt",
    ),
    Mutant(
        "locks-made-with-the-first",
        "src/file/directory_lock.cpp",
        "[[maybe_unused]] const HeldLocks& kMadeAtLoad = HeldLocks::of_this_process();\n",
        "",
        "file",
        "DirectoryLock.AChildForkedWhileTheFirstLockIsTakenEnds",
    ),
    Mutant(
        "fork-ends-groups",
        _FORKS,
        "        _C.keep_forever(group)\n",
        "        pass\n",
        "python",
        "tests/python/faults/test_forks.py::test_a_forked_child_ends_by_itself",
    ),
    Mutant(
        "interrupt-is-not-told",
        _CORE,
        "    abort_all(reason);\n",
        "    abort(reason);\n",
        "comm",
        "Interrupt.EndsAWaitAndIsToldToAllRanks",
    ),
    Mutant(
        "communicators-fail-alone",
        _CORE,
        "  abort_all(message);\n",
        "  abort(message);\n",
        "comm",
        "WaitGraphTest.CommunicatorsFailTogether",
    ),
    Mutant(
        "groups-fail-alone",
        "src/comm_c10d/c10d_core.cpp",
        "failure_(options.failure ? options.failure : std::make_shared<SharedFailure>())",
        "failure_(std::make_shared<SharedFailure>())",
        "comm_c10d",
        "C10dComm.CommunicatorsThatShareAFailureFailTogether",
    ),
    Mutant(
        "small-units-as-large-ones",
        "src/plan/buffer_sizes.cpp",
        "kMost = 8;",
        "kMost = 1;",
        "plan",
        "PlanLedger.SmallUnitsHaveMoreSlots",
    ),
    Mutant(
        "groups-are-kept",
        _GROUPS,
        "        dist.destroy_process_group(group)\n",
        "        pass\n",
        "python",
        "tests/python/train/test_many_engines.py::test_ranks_of_one_host_keep_no_group_of_their_own",
    ),
]

# Of launchers of several hosts.
_LINK = "src/launch/host_link.cpp"
_LOST, _SILENT = "HostLink.ALostLauncherIsNamedOnceUnlessItHasTold", "HostLink.ASilentLauncherIsNamed"

MUTANTS += [
    Mutant(name, file, old, new, "launch", test)
    for name, file, old, new, test in [
        ("news-not-passed-on", _LINK, "  pass_on(&from, line);\n", "", "HostLink.NodeZeroPassesOnWhatItHears"),
        ("lost-host-untold", _LINK, "if (!peer.is_open() && !peer.is_over) report", "if (false) report", _LOST),
        ("ended-host-is-lost", _LINK, 'if (line == "done") from.is_over = true;', "", _LOST),
        ("silent-host-untold", _LINK, "peer.silent_s() > patience_s_", "false", _SILENT),
        (
            "ranks-not-told-of-hosts",
            "src/launch/heartbeat_board.cpp",
            "  std::atomic_ref(header.news_bytes).store(static_cast<uint32_t>(length), std::memory_order_release);\n",
            "  (void)length;\n",
            "Heartbeat.EveryRankLearnsWhatHasFailedOnAnotherHost",
        ),
    ]
]
