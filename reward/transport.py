"""The HTTP client of a call that carries a key: no redirects, no proxy except its own, replies of limited size.

google-genai would follow redirects with the key and the prompt, and read proxies from the environment.
"""

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import httpx2  # what google-genai and openai use

# Of a reply, decompressed. The longest that is asked for has 32,768 tokens.
MAX_BYTES = 4 * 2**20

_AUTHORITY = re.compile(r"(?:https?:)?//(?P<authority>[^/?#\\]*)", re.IGNORECASE)
_SHOWABLE = re.compile(r"(?:\[[0-9a-f:.]+\]|[a-z0-9.-]{1,253})(?::\d{1,5})?", re.ASCII | re.IGNORECASE)


class Redirected(Exception):
    """A server answered with a redirect, which was not followed. Holds no key."""


class ReplyTooLarge(ValueError):
    """A reply has more than MAX_BYTES bytes."""


class HttpClient(httpx2.Client):
    """Refuses redirects and replies that are too large. For all threads.

    Args:
        key: is kept out of messages.
        proxy: the address of an http or https proxy; None is a direct connection.
    """

    def __init__(self, key: str, proxy: str | None = None) -> None:
        # The context trusts what SSL_CERT_FILE and SSL_CERT_DIR name; nothing else is read from the environment.
        super().__init__(
            verify=httpx2.create_ssl_context(),
            timeout=None,
            trust_env=False,
            proxy=proxy,
            follow_redirects=False,
            limits=httpx2.Limits(max_keepalive_connections=0),  # each call has a connection of its own, see cut
        )
        self._key = key

    def send(self, request: httpx2.Request, **_: Any) -> httpx2.Response:
        """Send a request and return its whole reply.

        Raises:
            Redirected: for a redirect.
            ReplyTooLarge: once the reply has more than MAX_BYTES.
        """
        request.extensions["trace"] = _trace
        response = super().send(request, stream=True, follow_redirects=False)
        try:
            if 300 <= response.status_code < 400:
                raise Redirected(_describe_redirect(response.status_code, response.headers.get("location"), self._key))
            content = bytearray()
            for part in response.iter_bytes():
                content += part
                if len(content) > MAX_BYTES:
                    raise ReplyTooLarge(f"the reply has more than {MAX_BYTES} bytes")
        finally:
            response.close()
        # The content is decoded: the headers must not say otherwise.
        plain = [(n, v) for n, v in response.headers.multi_items() if n not in ("content-encoding", "content-length")]
        return httpx2.Response(response.status_code, headers=plain, content=bytes(content), request=request)


def _describe_redirect(status: int, location: str | None, key: str) -> str:
    """Describe a redirect by its host, and by nothing else that the server chose."""
    return f"the server redirects ({status}) to {_target(location or '', key)}; redirects are not followed"


def _target(location: str, key: str) -> str:
    if not location:
        return "an address that it does not name"
    match = _AUTHORITY.match(location)
    if match is None:
        is_path = re.match(r"[a-z][a-z0-9+.-]*:", location, re.IGNORECASE) is None
        return "another path of the same host" if is_path else "an address that is not http"
    host = match["authority"].rpartition("@")[2]
    if not _SHOWABLE.fullmatch(host) or key.lower() in host.lower():
        return "a host that cannot be shown"
    return f"the host {host}"


_thread = threading.local()


def call_when_sent(on_sent: Callable[[], None]) -> None:
    """Call `on_sent` when the next request of this thread has gone out."""
    _thread.on_sent = on_sent


_streams: WeakKeyDictionary[threading.Thread, Any] = WeakKeyDictionary()
_late: WeakSet[threading.Thread] = WeakSet()


def cut(thread: threading.Thread) -> None:
    """End the call of a thread: its connection is shut down, and a later one is not used."""
    _late.add(thread)
    if stream := _streams.get(thread):
        with contextlib.suppress(OSError):  # it is closed
            stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def _trace(name: str, info: dict[str, Any]) -> None:
    """Callback of httpcore2's trace extension, in the thread of the call."""
    thread = threading.current_thread()
    if name.endswith(("connect_tcp.complete", "start_tls.complete")):
        _streams[thread] = info["return_value"]
    if thread in _late and not name.endswith(".failed"):
        raise TimeoutError("the call was abandoned")
    if name.endswith("send_request_body.complete") and hasattr(_thread, "on_sent"):
        _thread.on_sent()
