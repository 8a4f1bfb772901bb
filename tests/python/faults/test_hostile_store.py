"""Strangers at the port where ranks meet: torch's store, in rank 0's process."""

import contextlib
import os
import random
import re
import socket
import struct
import time

import pytest
import torch
import world
import zeroshard
from checkpointed import Dropping, configuration, facts, seed, train

pytestmark = pytest.mark.fault
MAGIC = struct.pack("<I", 0x3C85F7CE)  # what a client of the store sends first


def train_until(path, transport):
    """Trains until `path` is there, and 3 more steps."""
    engine, *_ = zeroshard.initialize(model=Dropping(), config=configuration(3, transport=transport, timeout_s=40))
    seed(engine)
    print(f"training; the store is at {os.environ['MASTER_PORT']}.", flush=True)
    done = False
    while not done:
        train(engine, 1)
        if os.path.exists(path) and engine.rank() == 1:
            engine.request_stop()
        done = engine.stop_requested
    train(engine, 3)
    engine.save_checkpoint(os.path.dirname(path))
    engine.wait_for_checkpoint()
    torch.distributed.barrier()  # by way of torch's own group, too
    # A new group: the ranks meet at the store again.
    group = torch.distributed.new_group([0, 1, 2])
    total = torch.ones(1)
    torch.distributed.all_reduce(total, group=group)
    return [engine.global_steps, total.item(), *facts(engine)[:1]]


def connect(port):
    link = socket.create_connection(("127.0.0.1", port), timeout=10)
    link.setblocking(False)
    return link


def say(link, data):
    with contextlib.suppress(OSError):  # the store may close, or read no more
        link.send(data)


def attack(port, strangers, generator):
    """Connections that say nothing, a part of something, or anything; some leave at once, all others stay."""
    links = []
    for index in range(strangers):
        try:
            link = connect(port)
        except OSError:  # the store takes no more
            break
        kind = index % 6
        if kind == 1:
            say(link, generator.randbytes(generator.randrange(1, 5000)))
        if kind == 2:
            say(link, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        if kind == 3:
            say(link, b"\x00" + MAGIC[:2])
        if kind == 4:  # as a client, then a key of 2^62 bytes
            say(link, b"\x00" + MAGIC + b"\x01" + struct.pack("<Q", 2**62))
        if kind == 5:  # as a client, then anything
            say(link, b"\x00" + MAGIC + generator.randbytes(200))
            link.close()
        links.append(link)
    return links


@pytest.mark.row("X2")
@pytest.mark.parametrize("transport", ["shm", "process_group"])
def test_strangers_at_the_store(tmp_path, release, transport):
    number = random.SystemRandom().randrange(10**6) if release else 1  # what torch's store does with it is torch's
    print(f"seed {number}")
    ranks = world.World(3, train_until, path=str(tmp_path / "stop"), transport=transport)
    links = []
    try:
        ranks.wait_for("training; ", seconds=60)
        port = int(re.search(r"the store is at (\d+)\.", ranks.log(0))[1])
        strangers = 1000 if release else 120
        links = attack(port, strangers, random.Random(number))
        assert len(links) == strangers
        time.sleep(1)  # the ranks train on meanwhile
        (tmp_path / "stop").touch()
        ended = ranks.results(90)
    finally:
        ranks.kill()
        for link in links:
            link.close()
    for rank in ended:
        assert rank.exit_code == 0, (rank.error, rank.log[-3000:])
        assert rank.value == ended[0].value and rank.value[1] == 3.0
