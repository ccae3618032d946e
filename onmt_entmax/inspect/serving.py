"""Listening, and serving until interrupted."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from urllib.parse import quote

from waitress.server import create_server

from onmt_entmax.errors import invalid_setting
from onmt_entmax.inspect.app import AT_ONCE, make_app
from onmt_entmax.inspect.loaded import Loaded
from onmt_entmax.plugin.models import float32_products

THREADS = AT_ONCE + 4  # the page's files are served while all of these compute
MOST_BYTES = 1 << 20  # of a request that is read at all; less than that is refused in words


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address, before the models are loaded.

    Args:
        host: an address or a name.
        port: 0 for any that is free.

    Raises:
        UserError: the port is in use, or there is no such address here.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        raise invalid_setting("host", host, f"There is no such address here ({error.strerror}).") from None
    try:
        made.bind(address)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise invalid_setting("port", port, "It is in use; choose another, or 0 for any that is free.") from None
        if error.errno == errno.EACCES:
            raise invalid_setting("port", port, "It needs more rights; choose one above 1023.") from None
        raise invalid_setting("host", host, f"It cannot be listened at ({error.strerror}).") from None
    return made


def serve(
    listening: socket.socket,
    host: str,
    loaded: Sequence[Loaded],
    token: str | None,
    open_browser: Callable[[str], object] | None,
) -> None:
    """Serve the page of some models until interrupted.

    Args:
        listening: see :func:`listen`.
        host: as the user gave it.
        loaded: the models.
        token: see :func:`~onmt_entmax.inspect.app.make_app`.
        open_browser: called with the address; None: nobody wants one.
    """
    port = listening.getsockname()[1]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    address += f"?token={quote(token, safe='')}" if token else ""
    with float32_products(False):
        app = make_app(loaded, host, port, token)
        settings = {"threads": THREADS, "ident": None, "max_request_body_size": MOST_BYTES}
        server = create_server(app, sockets=[listening], **settings)
        print(f"{', '.join(one.name for one in loaded)}: {address}  (Ctrl-C ends)", flush=True)
        if open_browser is not None:
            open_browser(address)
        try:
            server.run()
        except KeyboardInterrupt:
            pass
        finally:
            server.close()
