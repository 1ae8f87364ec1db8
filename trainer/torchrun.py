"""Joining the processes that torchrun has started, and ending all of them when one fails."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Generator
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from robot_runtime.errors import BadInput, ExitCode, SurefootError
from trainer.distributed import ALONE, PeerLost, Peers

TIMEOUT = timedelta(minutes=10)
"""How long one process waits for another that lives: rank 0 evaluates and writes meanwhile."""

_PERIOD = 0.5
"""Seconds between two looks for a failure."""

_PATIENCE = 5.0
"""Seconds that the end of a process waits for a store that does not answer."""

_FAILED = "surefoot/failed"


def world_size() -> int:
    """Return the number of processes, as torchrun and its like say it.

    Raises:
        BadInput: They say no number.
    """
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdigit() or int(text) < 1:
        raise BadInput(f"WORLD_SIZE = {text!r}: must be a number of processes")
    return int(text)


@contextlib.contextmanager
def joined(device: str) -> Generator[Peers]:
    """Join the other processes for a while; alone where there are none.

    A process that fails inside says why on standard error, with its traceback if it is no error of
    the user's, and has all others end within a second, whatever they wait for.

    Args:
        device: `cpu`, then they talk by gloo; or `cuda`, then by NCCL, and the GPU of this process
            becomes the current one.

    Raises:
        BadInput: There is no GPU for this process, or the variables of torchrun are not set.
        SystemExit: Several processes, and something was raised inside.
    """
    if world_size() == 1:
        yield ALONE
        return
    peers = join(device)
    watch = Watch(peers.rank)
    try:
        yield peers
    except BaseException as error:
        try:
            code = _told(error, peers)
        finally:
            # Also where there is nobody to say it to, or no room.
            watch.fail()
        raise SystemExit(code) from error
    watch.close()
    # Nobody leaves while another one still works: it would be taken for a failure.
    peers.any(False)
    dist.destroy_process_group()


def join(device: str) -> Peers:
    """Join the other processes for good; see `joined`."""
    size = world_size()
    if size == 1:
        return ALONE
    rank, local_rank = _number("RANK"), _number("LOCAL_RANK")
    backend = "gloo"
    if torch.device(device).type == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise BadInput(
                f"rank {rank} is to learn on GPU {local_rank} of its node, which has "
                f"{torch.cuda.device_count()}: start fewer processes per node"
            )
        torch.cuda.set_device(local_rank)
        # What is on the CPU, states and metrics, goes by gloo.
        backend = "cpu:gloo,cuda:nccl"
    if not dist.is_initialized():
        _number("MASTER_PORT")
        try:
            dist.init_process_group(backend, timeout=TIMEOUT)
        except (RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())
            raise PeerLost(f"rank {rank} cannot join the other processes: {text}") from error
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Peers(rank=rank, size=size, local_size=local_size)


class Watch:
    """Ends this process soon after another one has failed.

    It has a thread and a connection of its own, since the process itself may wait inside a
    collective or a simulator where it hears nothing.
    """

    def __init__(self, rank: int) -> None:
        """Begin to watch."""
        self._rank = rank
        self._key = f"{_FAILED}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            address, port, is_master=False
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
        self._thread.start()

    def fail(self) -> None:
        """Let all others know that this process has failed."""
        # Without a store the first process is gone, and nobody left to be told.
        if self.close():
            with contextlib.suppress(RuntimeError):
                self._store.set(self._key, str(self._rank))

    def close(self) -> bool:
        """Watch no longer; return whether the store still answers.

        It does not where the computer of the first process is gone without a word: then a question
        to it waits for ever, and so would the next one.
        """
        self._over.set()
        self._thread.join(_PATIENCE)
        return not self._thread.is_alive()

    def _look(self) -> None:
        while not self._over.wait(_PERIOD):
            try:
                if not self._store.check([self._key]):
                    continue
                who = f"rank {self._store.get(self._key).decode()} has failed"
            except RuntimeError:
                who = "the first process is gone"
            if not self._over.is_set():
                _end(f"surefoot train: rank {self._rank} ends: {who}")


def _end(line: str) -> NoReturn:
    """Leave at once: the main thread may be where no exception reaches it."""
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    finally:
        os._exit(ExitCode.FAILED)


def _told(error: BaseException, peers: Peers) -> int:
    """Say what has ended this process and return its exit code."""
    who = f"surefoot train: rank {peers.rank} of {peers.size}"
    if isinstance(error, Exception) and not isinstance(error, PeerLost):
        # torchrun shows the earliest of these at its end.
        get_error_handler().record_exception(error)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else ExitCode.FAILED
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write(f"{who}: interrupted\n")
        return ExitCode.INTERRUPTED
    if isinstance(error, SurefootError):
        sys.stderr.write(f"{who}: error: {' '.join(str(error).split())}\n")
        return error.exit_code
    sys.stderr.write(f"{who} failed:\n{''.join(traceback.format_exception(error))}")
    sys.stderr.flush()
    return ExitCode.INTERNAL


def _number(name: str) -> int:
    """Return what torchrun has put into the environment."""
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise BadInput(
            f"WORLD_SIZE = {world_size()} and {name} = {text!r}: start several processes with "
            "torchrun --nproc-per-node N -m trainer TASK ..."
        )
    return int(text)
