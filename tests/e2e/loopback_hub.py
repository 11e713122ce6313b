"""A small hub on the loopback: repositories of files in memory, as the Hugging Face hub answers for
them, and faults on demand.  A file in LFS is served by a second host, to which the first redirects; other
files by a second address of the first."""
import collections
import contextlib
import hashlib
import http.client
import http.server
import json
import re
import socket
import ssl
import struct
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Asked = collections.namedtuple("Asked", "host path headers")


def sha1_of_blob(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Repository:
    """files: path to bytes.  gated: the hub's word, with a token's licence accepted or not."""

    def __init__(self, files, commit=COMMIT, gated=False, private=False):
        self.files, self.commit, self.gated, self.private = files, commit, gated, private

    def is_lfs(self, path):
        return path.endswith((".safetensors", ".gguf"))

    def hash_of(self, path):
        content = self.files[path]
        return hashlib.sha256(content).hexdigest() if self.is_lfs(path) else sha1_of_blob(content)

    def siblings(self):
        for path, content in self.files.items():
            one = {"rfilename": path, "size": len(content), "blobId": sha1_of_blob(content)}
            if self.is_lfs(path):
                one["lfs"] = {"sha256": self.hash_of(path), "size": len(content), "pointerSize": 134}
            yield one

    def tree(self):
        for one in self.siblings():
            row = {"type": "file", "path": one["rfilename"], "size": one["size"], "oid": one["blobId"]}
            if "lfs" in one:
                row["lfs"] = {"oid": one["lfs"]["sha256"], "size": one["size"], "pointerSize": 134}
            yield row


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server.hub
        with hub.lock:
            hub.asked.append(Asked(self.server.name, self.path, dict(self.headers)))
            fault = hub.faults.popleft() if hub.faults and hub.fits(hub.faults[0], self) else None
        moved = next((name for name in hub.moved if f"/{name}/" in self.path), None)
        if fault and fault.status:
            self.answer(fault.status, b"{}", {**fault.headers, "Content-Type": "application/json"})
        elif moved:  # without the host, as the hub does
            self.answer(307, b"", {"Location": self.path.replace(moved, hub.moved[moved])})
        elif self.path.startswith("/api/models/"):
            self.list_files(hub)
        else:
            self.give_file(hub, fault)

    def answer(self, status, body, headers=()):
        self.send_response(status)
        for name, value in {**dict(headers), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code):
        self.answer(status, b'{"error": "x"}', {"X-Error-Code": code, "X-Error-Message": "x"})

    def find(self, hub, name, revision):
        """The repository, or None once a refusal is sent."""
        repository = hub.repositories.get(name)
        has_token = self.headers.get("Authorization") == f"Bearer {hub.token}"
        if not repository or (repository.private and not has_token):
            return self.refuse(401, "RepoNotFound")
        if revision not in (repository.commit, *hub.revisions):
            return self.refuse(404, "RevisionNotFound")
        return repository

    def list_files(self, hub):
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/?]+)(?:\?.*)?", self.path)
        repository = match and self.find(hub, match[1], urllib.parse.unquote(match[3]))
        if repository and match[2] == "tree":  # newer clients ask so
            self.answer(200, json.dumps(list(repository.tree())).encode(), {"Content-Type": "application/json"})
        elif repository:
            listed = hub.listed or {"id": match[1], "sha": repository.commit, "gated": repository.gated,
                                    "cardData": {"license": "apache-2.0"},
                                    "siblings": list(repository.siblings())}
            self.answer(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})
        elif not match:
            self.refuse(404, "RepoNotFound")

    def give_file(self, hub, fault):
        match = re.fullmatch(r"(/other|/cache)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        if not match:
            return self.refuse(404, "EntryNotFound")
        place, name, revision, path = match[1], match[2], match[3], urllib.parse.unquote(match[4])
        is_other = self.server is not hub.servers[0]
        repository = hub.repositories[name] if is_other else self.find(hub, name, revision)
        if not repository:
            return None
        if path not in repository.files:
            return self.refuse(404, "EntryNotFound")
        if repository.gated and not is_other and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.refuse(401 if "Authorization" not in self.headers else 403, "GatedRepo")
        about = {"X-Repo-Commit": repository.commit, "ETag": f'"{repository.hash_of(path)}"'}
        if not hub.tells:
            about = {}
        if hub.redirects and not place and not repository.is_lfs(path):
            return self.answer(307, b"", {**about, "Location": "/cache" + self.path})
        if repository.is_lfs(path) and not is_other and hub.redirects:
            about |= {"X-Linked-Etag": f'"{repository.hash_of(path)}"', "X-Linked-Size": str(len(repository.files[path])),
                      "Location": hub.other_address + "/other" + self.path}
            return self.answer(302, b"", about)
        return self.send_part(hub, repository.files[path], about, fault)

    def send_part(self, hub, content, about, fault):
        if fault and fault.change:
            content = fault.change(content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        part, status = content, 200
        if asked and hub.ranges:
            begin, end = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
            if begin >= len(content):
                return self.answer(416, b"", {**about, "Content-Range": f"bytes */{len(content)}"})
            part, status = content[begin:end + 1], 206
            about["Content-Range"] = f"bytes {begin}-{end}/{len(content)}"
        if not fault or fault.cut is None or fault.cut >= len(part):
            return self.answer(status, part, about)
        self.send_response(status)
        for name, value in {**about, "Content-Length": str(len(part))}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(part[:fault.cut])
            self.wfile.flush()
        if fault.hold:
            fault.hold.set()
            fault.go.wait(30)
        # What has been written still goes out, and then the connection is reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        self.close_connection = True
        return None


class Fault:
    """The next request for a path that ends so gets this: a status, a cut after some bytes, or other
    bytes.  hold: the connection stays open after the cut, until go is set."""

    def __init__(self, end="", status=None, headers=(), cut=None, change=None, hold=False):
        self.end, self.status, self.headers, self.cut, self.change = end, status, dict(headers), cut, change
        self.hold = threading.Event() if hold else None
        self.go = threading.Event()


class Hub:
    """Use as a context manager.  tls: certificate and key of both hosts, which are named then."""

    def __init__(self, tls=None, names=("127.0.0.1", "127.0.0.1")):
        self.lock = threading.Lock()
        self.repositories = {}
        self.servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
        for server, name in zip(self.servers, ("hub", "other")):
            server.daemon_threads = True
            server.hub, server.name = self, name
            if tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*tls)
                server.socket = context.wrap_socket(server.socket, server_side=True)
        self.address, self.other_address = (
            f"http{'s' if tls else ''}://{name}:{server.server_port}" for name, server in zip(names, self.servers))
        self.reset()

    def reset(self):
        self.repositories.clear()
        self.asked, self.faults = [], collections.deque()
        self.listed, self.redirects, self.ranges, self.tells = None, True, True, True
        self.moved = {}  # former names of repositories
        self.revisions, self.token = {"main"}, "hf_secretsecretsecret"

    def fits(self, fault, handler):
        """A cut of a file that is redirected is one of where it is redirected to."""
        path = handler.path.split("?")[0]
        is_first = not fault.status and self.redirects and not path.startswith(("/other/", "/cache/"))
        return path.endswith(fault.end) and not is_first

    def paths(self, of="hub"):
        return [asked.path for asked in self.asked if asked.host == of]

    def __enter__(self):
        for server in self.servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.shutdown()
            server.server_close()


class Proxy(http.server.ThreadingHTTPServer):
    """A proxy on the loopback, which alone knows the hosts' names: it leads all of them to this machine.
    word: what it asks for as Proxy-Authorization."""
    daemon_threads = True

    def __init__(self, word=None):
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.word, self.asked = word, []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class ProxyHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def is_refused(self, target):
        self.server.asked.append(Asked(target, self.command, dict(self.headers)))
        if self.server.word in (None, self.headers.get("Proxy-Authorization")):
            return False
        self.send_response(407)
        self.send_header("Proxy-Authenticate", 'Basic realm="x"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

    def do_CONNECT(self):
        if self.is_refused(self.path):
            return
        with socket.create_connection(("127.0.0.1", int(self.path.rsplit(":", 1)[1]))) as to:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=self.pass_on, args=(to, self.connection))
            back.start()
            self.pass_on(self.connection, to)
            back.join()
        self.close_connection = True

    @staticmethod
    def pass_on(source, to):
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 16):
                to.sendall(block)
            to.shutdown(socket.SHUT_WR)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if self.is_refused(url.netloc):
            return
        asked = http.client.HTTPConnection("127.0.0.1", url.port, timeout=30)
        asked.request("GET", url._replace(scheme="", netloc="").geturl(), headers=dict(self.headers))
        reply = asked.getresponse()
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.read())
        asked.close()
