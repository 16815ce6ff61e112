"""Clients that hold a bare socket, so that they can go away in any way and at any moment."""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

from tests.cluster.serve_cluster import Json, ServedApp

Leave = Literal["close", "reset"]


class RawClient:
    """One connection with one request on it."""

    def __init__(self, app: ServedApp, route: str, body: Json) -> None:
        url = urlsplit(app.url + route)
        content = json.dumps(body).encode()
        head = f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
        self._socket = socket.create_connection((url.hostname, url.port), timeout=30)
        self._socket.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        self.received = b""

    @property
    def num_events(self) -> int:
        return self.received.count(b"data: ")

    def receive(self) -> bool:
        """Take what the server sends next; False once it has closed the connection."""
        data = self._socket.recv(65536)
        self.received += data
        return bool(data)

    def fileno(self) -> int:
        return self._socket.fileno()

    def leave(self, how: Leave) -> None:
        """Close the connection, or make the kernel reset it."""
        if how == "reset":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


def wait_for_streams(clients: Sequence[RawClient], num_streams: int, num_events: int) -> None:
    """Until that many of the clients, whichever they are, have that many events."""
    while sum(client.num_events >= num_events for client in clients) < num_streams:
        readable, _, _ = select.select(clients, [], [], 30)
        assert readable, "no stream goes on"
        for client in readable:
            assert client.receive(), "the server closed the connection"
