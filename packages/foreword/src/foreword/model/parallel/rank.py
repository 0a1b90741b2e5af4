"""Runs one of the other ranks: loads its share of the weights, then repeats what rank 0
does until that ends.
"""

import os
import pickle
import shutil
import sys
import threading
import warnings
from typing import cast

from transformers.utils.logging import disable_progress_bar

from foreword.errors import words
from foreword.model.model import Model
from foreword.model.parallel.backend import ParallelBackend
from foreword.model.parallel.lead import messages
from foreword.model.parallel.load import shard
from foreword.model.parallel.network import grouped, joined
from foreword.model.parallel.ranks import Seat

END_SECONDS = 1.0
"""Seconds between the end of a group and that of the pipe, at most."""


def main() -> None:
    """Take the seat that standard input names; end with rank 0."""
    rank_0 = os.getppid()
    seat: Seat = pickle.load(sys.stdin.buffer)  # noqa: S301 - its parent
    watch = threading.Thread(target=_end_with_parent, args=(seat,), daemon=True)
    watch.start()
    warnings.simplefilter("ignore")  # rank 0 gives them, and shows the progress
    disable_progress_bar()
    try:
        _run(seat)
    except BaseException as error:  # noqa: BLE001 - the last place that can report it
        sys.stdout.write(f"\n{words(error)}\n")
        sys.stdout.flush()
        # a killed rank 0 ends its groups first, then its pipe: then the watch tidies up
        watch.join(END_SECONDS)
        if os.getppid() != rank_0:  # the watch had no time to
            shutil.rmtree(seat.folder, ignore_errors=True)
        os._exit(1)
    os._exit(0)


def _run(seat: Seat) -> None:
    store = seat.store
    store.set(joined(seat.rank), "")
    order = seat.order
    control = grouped(store, order.device, seat.rank, order.count)
    model = shard(Model, order)
    cast("ParallelBackend", model.backend).follow(messages(control))


def _end_with_parent(seat: Seat) -> None:
    """End this process when the pipe closes: rank 0 has ended, or wants it."""
    sys.stdin.buffer.read()
    shutil.rmtree(seat.folder, ignore_errors=True)  # rank 0 may have been killed
    os._exit(0)


if __name__ == "__main__":
    main()
