"""The process beside the loop that writes a flight log; run as a script, standard library only.

It is a process and not a thread because a thread takes the interpreter lock from the loop, and
whoever is waited for while holding it decides when the next command is sent. Records come as the
packets of a socket and go to the file at once, so that they survive whatever kills the loop. A
thread of its own does the writing: while the disk is busy, records pile up here and not there.
"""

import os
import queue
import signal
import socket
import sys
import threading

_LARGEST = 1 << 20


def write_all(descriptor: int, packets: "queue.SimpleQueue[bytes]") -> None:
    """Write packets until an empty one comes; leave the process when the disk does not take them.

    Args:
        descriptor: The file.
        packets: What to write.
    """
    try:
        while packet := packets.get():
            rest = memoryview(packet)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
    except OSError:
        # The loop notices that nobody listens any more, and counts what is lost.
        os._exit(1)


def main(incoming: int, outgoing: int) -> None:
    """Copy packets from a socket to a file until the other end is closed.

    Args:
        incoming: File descriptor of the socket.
        outgoing: File descriptor of the file.
    """
    # The end of the loop ends this, not the signals that end the loop.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    packets: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    writer = threading.Thread(target=write_all, args=(outgoing, packets))
    writer.start()
    try:
        with socket.socket(fileno=incoming) as packet_socket:
            while packet := packet_socket.recv(_LARGEST):
                packets.put(packet)
    finally:
        # Whatever has ended it: the thread would wait for ever, and the process for the thread.
        packets.put(b"")
        writer.join()
    os.fsync(outgoing)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
