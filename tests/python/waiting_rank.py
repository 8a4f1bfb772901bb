"""A rank of test_interrupts.py: waiting_rank.py PLACE TRANSPORT. Rank 0 waits there for rank 1, which waits for a line.

Rank 0 says "waits" once its main thread has stood still in a call for a while, which another thread watches.
"""

import sys
import threading
import time

import zeroshard
from models import stack_engine, train

PLACE, TRANSPORT = sys.argv[1:]


def say_when_it_waits():
    main = threading.main_thread().ident
    last, still = None, 0
    while still < 8:
        time.sleep(0.05)  # only time tells that it stands still
        frame = sys._current_frames()[main]
        here = (id(frame), frame.f_lasti)
        last, still = here, still + 1 if here == last else 0
    print("waits", flush=True)


def stand_still(rank):
    """Before it goes on to where the ranks meet."""
    if rank == 0:
        threading.Thread(target=say_when_it_waits, daemon=True).start()
    else:
        print("ready", flush=True)
        sys.stdin.readline()


def main():
    rank = zeroshard._C.rank_environment().rank
    if PLACE == "meet":
        stand_still(rank)
    zeroshard.init_distributed("cpu")
    if PLACE == "groups":
        stand_still(rank)
    if PLACE == "build":  # in the middle of the core's constructor
        materialize = zeroshard.making.materialize
        calls = []

        def slow(*args):
            if not calls:
                calls.append(0)
                stand_still(rank)
            materialize(*args)

        zeroshard.making.materialize = slow
    engine = stack_engine(3, "fp32", TRANSPORT)
    train(engine, range(2))
    if PLACE == "step":
        stand_still(rank)
    if PLACE == "save":
        if rank == 0:
            stand_still(rank)
            engine.save_checkpoint("unused")
        stand_still(rank)
    train(engine, range(2, 4))
    print("done", flush=True)


main()
