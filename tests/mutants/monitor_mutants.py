"""What files of metrics and the progress line could get wrong."""

from mutant import Mutant

_LINE, _APPEND, _CSV = "src/monitor/progress_line.cpp", "src/monitor/append_file.cpp", "src/monitor/csv_sink.cpp"

_TABLE = [
    (
        "monitor-torn-record-stays",
        _APPEND,
        "  if (torn_) cut();\n",
        "",
        "AppendFile.ATornRecordThatCouldNotBeCutIsCutBeforeTheNextOne",
    ),
    (
        "monitor-part-of-a-record-stays",
        _APPEND,
        "    try {\n      cut();\n",
        "    try {\n",
        "AppendFile.WhatAFullDiskTookOfARecordIsCutOff",
    ),
    (
        "monitor-lost-steps-stay",
        "src/monitor/jsonl_sink.cpp",
        "if (step->get<int64_t>() > *start.resume_step) return LineVerdict::kCut;",
        "",
        "RunMetrics.AResumedRunHasTheRecordsOfAnUninterruptedOne",
    ),
    (
        "monitor-saved-step-dropped",
        "src/monitor/event_sink.cpp",
        "*start.resume_step + 1 : 0",
        "*start.resume_step : 0",
        "RunMetrics.AResumedRunTellsTensorboardWhatIsLost",
    ),
    (
        "monitor-checksum-not-masked",
        "src/monitor/event_record.cpp",
        "std::rotr(crc32c(data), 15)",
        "crc32c(data)",
        "EventRecord.FramesAsATfrecord",
    ),
    (
        "monitor-rows-into-the-old-table",
        _CSV,
        "    file_ = AppendFile::replace(",
        "    (void)AppendFile::replace(",
        "RunMetrics.ANewNameGetsAColumnInEveryRow",
    ),
    (
        "monitor-spike-lost",
        "src/monitor/series.cpp",
        "later.highest->value > group.highest->value",
        "false",
        "Series.KeepsExtremesOfAnyNumberOfRecords",
    ),
    (
        "monitor-failure-told-again-and-again",
        "src/monitor/run_metrics.cpp",
        "if (std::exchange(sink.failed, true)) return;",
        "",
        "RunMetrics.ADiskThatStaysFullIsToldOncePerFile",
    ),
    ("monitor-sigpipe", _LINE, "  const SigpipeBlocked blocked;\n", "", "ProgressLine.AClosedPipeEndsNothing"),
    (
        "monitor-heap-of-old-bars",
        _LINE,
        " || !writer_.idle()",
        "",
        "ProgressLine.AStoppedTerminalGetsNoHeapOfOldBars",
    ),
    (
        "monitor-width-asked-once",
        _LINE,
        "columns_of(output_.fd()) - 1",
        "39",
        "ProgressLine.TheWidthIsAskedForEachTime",
    ),
]

MUTANTS = [Mutant(name, file, old, new, "monitor", test) for name, file, old, new, test in _TABLE]
