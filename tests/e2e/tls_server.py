"""A server behind TLS, with a certificate of its own."""
import http.client
import json
import os
import pathlib
import socket
import ssl
import subprocess

from server import PATIENCE, Reply, Server


def make_certificate(directory, name, hosts=()):
    """A self-signed certificate for localhost and these hosts, with this subject."""
    files = directory / "certificate.pem", directory / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", files[1], "-out", files[0],
                    "-days", "2", "-subj", f"/CN={name}", "-addext",
                    ",".join(["subjectAltName=DNS:localhost", "IP:127.0.0.1", *(f"DNS:{host}" for host in hosts)])], check=True, capture_output=True)
    return files


class TlsServer(Server):
    """A server whose requests go through TLS, and trust its certificate alone."""

    def __init__(self, directory, *arguments, **rest):
        self.certificate, self.key = make_certificate(directory, "first")
        self.trust()
        super().__init__(directory, "--ssl-certfile", self.certificate, "--ssl-keyfile", self.key,
                         *arguments, **rest)

    def trust(self):
        self.context = ssl.create_default_context(cafile=self.certificate)

    def connect(self):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60 * PATIENCE,
                                           context=self.context)

    def request(self, method, path, body=None, headers=None, timeout=60):
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def open(self):
        return self.context.wrap_socket(socket.create_connection(("127.0.0.1", self.port)),
                                        server_hostname="localhost")

    def files(self):
        """What its descriptors are."""
        folder = pathlib.Path(f"/proc/{self.process.pid}/fd")
        return sorted(os.readlink(path) for path in folder.iterdir() if path.is_symlink())

    def n_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))
