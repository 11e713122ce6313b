"""HTTP by hand over a socket, for what a well-behaved client never does."""
import json
import socket
import time

from server import PATIENCE


class RawConnection:
    def __init__(self, server, timeout=30, receive_buffer=None, address=None):
        self.socket = socket.socket()
        if address:  # of the client, one of 127.0.0.0/8
            self.socket.bind((address, 0))
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout * PATIENCE)
        self.socket.connect(("127.0.0.1", server.port))
        self.buffer, self.text = b"", b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def send_last(self, data):
        """Sends and closes the sending side, in one packet."""
        self.socket.send(data, socket.MSG_MORE)
        self.socket.shutdown(socket.SHUT_WR)

    def send_completion(self, **parameters):
        self.send(completion_request(**parameters))

    def read_until(self, mark):
        """Everything up to and including mark; fails when the server closes before."""
        while mark not in self.buffer:
            data = self.socket.recv(65536)
            assert data, f"closed before {mark!r}: {self.buffer!r}"
            self.buffer += data
        head, self.buffer = self.buffer.split(mark, 1)
        return head + mark

    def read_exactly(self, n):
        while len(self.buffer) < n:
            data = self.socket.recv(65536)
            assert data, f"closed after {len(self.buffer)} of {n} bytes"
            self.buffer += data
        head, self.buffer = self.buffer[:n], self.buffer[n:]
        return head

    def read_head(self):
        """Status and headers (lower-case names) of the next answer."""
        lines = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ")[1])
        headers = {}
        for line in lines[1:]:
            if line:
                name, value = line.split(":", 1)
                headers[name.lower()] = value.strip()
        return status, headers

    def read_chunk(self):
        """One chunk of a chunked body; b"" is the end."""
        size = int(self.read_until(b"\r\n").split(b";")[0], 16)
        data = self.read_exactly(size)
        assert self.read_exactly(2) == b"\r\n"
        return data

    def read_event(self):
        """One event or comment of a stream, without the empty line behind it; b"" is the end.  A chunk may end
        within an event where a client that reads late has left much to send."""
        while b"\n\n" not in self.text:
            chunk = self.read_chunk()
            if not chunk:
                assert not self.text, self.text
                return b""
            self.text += chunk
        event, self.text = self.text.split(b"\n\n", 1)
        return event

    def read_data(self):
        """What the next event says, from JSON; None behind the last one."""
        while event := self.read_event():
            if event.startswith(b"data: {"):
                return json.loads(event.removeprefix(b"data: "))
        return None

    def read_reply(self):
        """Status, headers and whole body of the next answer."""
        status, headers = self.read_head()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while chunk := self.read_chunk():
                body += chunk
        elif "content-length" in headers:
            body = self.read_exactly(int(headers["content-length"]))
        else:
            body = self.buffer + self.read_to_close()
            self.buffer = b""
        return status, headers, body

    def read_to_close(self):
        """What still arrives until the server closes; a reset counts as closing."""
        data = b""
        try:
            while more := self.socket.recv(65536):
                data += more
        except ConnectionResetError:
            pass
        return data

    def is_closed_within(self, seconds):
        """Whether the server closes the connection in time, after whatever it still sends."""
        self.socket.settimeout(0.05)
        deadline = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < deadline:
            try:
                if not self.socket.recv(65536):
                    return True
            except TimeoutError:
                continue
            except ConnectionResetError:
                return True
        return False


def completion_request(keep_alive=True, **parameters):
    body = json.dumps({"temperature": 0, **parameters}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    if not keep_alive:
        head += "Connection: close\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + body
