"""Processes that take turns: one step of each in every round, so that what disturbs the machine disturbs them alike."""

import contextlib
import json
import os
import subprocess
import sys


def answer_steps(begin):
    """In such a process: calls ``begin()``, and for each line of its input prints what the function that this returned
    returns for the number of the line, as JSON."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print goes elsewhere
    step = begin()
    for number, _ in enumerate(sys.stdin):
        print(json.dumps(step(number)), file=answers, flush=True)


def take_turns(commands, rounds):
    """Starts ``commands`` (by name: argument list and environment beside this process's). Returns the rounds, each
    with what every process answered, by name."""
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, (command, environment) in commands.items():
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
            process = subprocess.Popen(command, env=os.environ | environment, **pipes)
            processes[name] = stack.enter_context(process)
        answers = [{name: _answer_of(process) for name, process in processes.items()} for _ in range(rounds)]
        for process in processes.values():
            process.stdin.close()
    return answers


def _answer_of(process):
    try:
        process.stdin.write("step\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        raise SystemExit(f"{' '.join(process.args)} ended with {process.wait()}")
    return json.loads(line)
