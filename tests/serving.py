"""Ending a waitress server that runs in a thread."""

from __future__ import annotations

import threading


def stop(server, thread: threading.Thread) -> None:
    """End it from the outside: first the threads that answer, then, in its own thread, its sockets.

    ``server.close()`` from another thread takes the sockets away from a loop that waits for them and from a request
    whose answer has arrived, but whose thread has not ended: now and then one of them fails with EBADF.
    """
    from waitress import wasyncore

    server.task_dispatcher.shutdown()
    server.trigger.pull_trigger(lambda: wasyncore.close_all(server._map))
    thread.join(20)
    assert not thread.is_alive()
