"""Starts and drives the processes of the peers. Between commands they are stopped, with all their threads."""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from .peers import UNCONNECTED, process_count

ROOT = Path(__file__).resolve().parents[2]


class PeerFailed(RuntimeError):
    """A process of a peer raised, ended or did not answer in time."""


def end_with_the_driver():
    """In a process that starts: nobody else would end one that is stopped."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class PeerWorld:
    """The processes of one peer, at most one command in flight."""

    def __init__(self, peer, python, options, scratch):
        self.peer = peer
        self.options = options
        self.scratch = Path(tempfile.mkdtemp(prefix=f"{peer}-", dir=scratch))
        port = free_port()
        self.processes, self.answers, self.buffers = [], [], []
        for index in range(process_count(peer, options.world)):
            self._start(python, index, port)

    def _start(self, python, index, port):
        options = self.options
        connected = self.peer not in UNCONNECTED
        read_end, write_end = os.pipe()
        command = [python, "-u", "-m", "stepbench.worker", "--peer", self.peer, "--shape", options.shape]
        command += ["--dtype", options.dtype, "--clip", str(options.clip), "--seed", str(options.seed)]
        command += ["--rank", str(index if connected else 0), "--world", str(options.world)]
        command += ["--store", str(self.scratch / "store"), "--answers", str(write_end)]
        if options.pin:
            cores = sorted(os.sched_getaffinity(0))
            command += ["--core", str(cores[index % len(cores)])]
        environment = os.environ | {
            "PYTHONPATH": str(ROOT / "bench"),  # zeroshard is that of the environment, which may have another build
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "RANK": str(index if connected else 0),
            "LOCAL_RANK": str(index if connected else 0),
            "WORLD_SIZE": str(options.world if connected else 1),
            "LOCAL_WORLD_SIZE": str(options.world if connected else 1),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "DS_ACCELERATOR": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
        }
        self._spawn(command, environment, index, read_end, write_end)

    def _spawn(self, command, environment, index, read_end, write_end):
        """Process `index`, which answers on `write_end`."""
        with open(self._log(index), "wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[write_end], env=environment,
                preexec_fn=end_with_the_driver,
            )  # fmt: skip
        os.close(write_end)
        self.processes.append(process)
        self.answers.append(read_end)
        self.buffers.append(b"")

    def _log(self, index):
        return self.scratch / f"process{index}.log"

    def ask(self, timeout, **command):
        """Sends one command to every process and returns their answers in order."""
        self._signal(signal.SIGCONT)
        try:
            return self._ask(timeout, command)
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number):
        for process in self.processes:
            process.send_signal(number)  # nothing, if it has ended

    def _ask(self, timeout, command):
        line = (json.dumps(command) + "\n").encode()
        for process in self.processes:
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                raise PeerFailed(f"{self.peer}: a process has ended\n{self.log_tail()}") from None
        deadline = time.monotonic() + timeout
        answers = [self._read(index, deadline) for index in range(len(self.processes))]
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            raise PeerFailed(f"{self.peer}: {errors[0]}\n{self.log_tail()}")
        return answers

    def _read(self, index, deadline):
        while b"\n" not in self.buffers[index]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.answers[index]], [], [], left)[0]:
                raise PeerFailed(f"{self.peer}: process {index} did not answer in time\n{self.log_tail()}")
            data = os.read(self.answers[index], 1 << 16)
            if not data:
                raise PeerFailed(f"{self.peer}: process {index} ended without an answer\n{self.log_tail()}")
            self.buffers[index] += data
        line, _, self.buffers[index] = self.buffers[index].partition(b"\n")
        return json.loads(line)

    def log_tail(self, lines=12):
        parts = []
        for index in range(len(self.processes)):
            text = self._log(index).read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- process {index} of {self.peer}\n" + "\n".join(text))
        return "\n".join(parts)

    def stop(self):
        self._signal(signal.SIGCONT)
        for process in self.processes:
            try:
                process.stdin.write(b'{"command": "exit"}\n')
                process.stdin.close()
            except (BrokenPipeError, OSError):
                pass
        for process in self.processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for descriptor in self.answers:
            os.close(descriptor)
        self.answers = []
