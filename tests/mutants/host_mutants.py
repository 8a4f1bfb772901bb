"""What the launchers of several hosts could fail to tell one another."""

from mutant import Mutant

_LINK = "src/launch/host_link.cpp"
_LOST, _SILENT = "HostLink.ALostLauncherIsNamedOnceUnlessItHasTold", "HostLink.ASilentLauncherIsNamed"

MUTANTS = [
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
