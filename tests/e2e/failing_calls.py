"""A server whose system calls fail where a test says, in every phase of its life, and what it must
do then.

scripts/load/fail_calls.py fails every one; test_failed_calls.py takes a sample.  A phase is a class
with attempt(k, variant): it makes the k-th call fail, judges what came of it, and returns how many
failed.  What no phase may see: a crash, a hang, another answer, or something that stays taken."""
import re
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time

import failing_memory
from composition import prompt_of
from failing_memory import Fault
from server import BINARY, PATIENCE, Server
from tls_server import TlsServer

PROGRAM = failing_memory.LIBRARY.with_name("failing_calls")
VARIANT, NAME_AT, NAME_BYTES = 5, 56, 64  # as failing_calls.c has them
LIVE_BYTES = PROGRAM.with_name("live_bytes.so")
N_VARIANTS = 3
LOADER_FAILED = 127
N_QUIET = 3  # attempts in which it did not come to the call, before a sweep ends
MOST_FAULTS = 50  # of a sweep
SETTINGS = ("--threads", 1, "--kv-cache-memory", "8M", "--max-model-len", 1024, "--max-num-seqs", 4,
            "--max-connections", 64)


class LibraryEnds(Fault):
    """A library ends the process where a call fails, and no code of ours can help it:

    the loader (ld.so), which does not check its own memory before main();
    libuv, which aborts without its pipe for signals, one of its pool's threads (quire tries four
    threads before), or the two descriptors of the loop itself;
    glibc, which aborts where the stack of a thread that has ended cannot be unmapped;
    libzmq, which names the line of its source and aborts."""


class Control(failing_memory.Control):
    """The page of failing_calls.c; behind it, in a file of its own, that of live_bytes.c."""

    n_before_main = 0  # calls up to there, at most

    def __init__(self, directory):
        super().__init__(directory)
        self.live_path = self.path.with_name("live_bytes")
        self.live_path.write_bytes(bytes(4096))

    @property
    def environment(self):
        return {"LD_PRELOAD": failing_memory.preload(LIVE_BYTES, self.live_path.parent),
                "LIVE_BYTES": str(self.live_path)}

    def n_blocks(self):
        """How many blocks of memory the server holds."""
        return struct.unpack("<qq", self.live_path.read_bytes()[:16])[1]

    @property
    def prefix(self):
        return str(PROGRAM), str(self.path)

    def arm_call(self, k, variant):
        self[VARIANT] = variant
        self.page[NAME_AT:NAME_AT + NAME_BYTES] = bytes(NAME_BYTES)
        self.arm(k)

    @property
    def name(self):
        return bytes(self.page[NAME_AT:NAME_AT + NAME_BYTES]).split(b"\0")[0].decode()

    def judge_silent(self, status, log):
        """The loader's sentence is good enough; and the log itself may be what failed."""
        if status == LOADER_FAILED and "error while loading shared libraries" in log:
            return
        if status == 1 and self.name.startswith("write"):
            return
        if self[failing_memory.FIRST] <= self.n_before_main:
            raise LibraryEnds(f"ended with {status} before main()")
        super().judge_silent(status, log)

    def is_abort_of_library(self, fault, calls):
        is_abort = re.match(rf"(ended|died) with -{signal.SIGABRT}\b", str(fault))
        return is_abort and (self.name.split(" ")[0] in calls or
                             re.search(r"\(src/\w+\.cpp:\d+\)\s*$", str(fault)))


def is_usable(directory):
    """Whether this system lets a program watch another's calls."""
    if not PROGRAM.exists():
        return False
    done = subprocess.run([PROGRAM, Control(directory).path, "true"], check=False)
    return done.returncode == 0


def n_calls_before_main(control):
    """Those of a command that does next to nothing in main()."""
    control.arm_call(1 << 40, 0)
    subprocess.run([*control.prefix, BINARY, "help"], check=True, stdout=subprocess.DEVNULL)
    control.disarm()
    return control[failing_memory.COUNT]


SAID = re.compile(rb'"(?:text|content|arguments|partial_json|delta)": ?"((?:[^"\\]|\\.)*)"'
                  rb'|"(?:tokens|token_ids)": ?\[([^\]]*)\]')


def said(reply):
    """What an answer says, however it was cut into events; None if it is an error."""
    if not reply.startswith(b"HTTP/1.1 200 "):
        return None
    body, _ = failing_memory.body_of(*reply.split(b"\r\n\r\n", 1))
    return b"".join(text or ids for text, ids in SAID.findall(body))


def exchange(port, request, leave=False, context=None):
    """Everything that is sent back until the connection ends, or its beginning."""
    data = b""
    try:
        with socket.create_connection(("127.0.0.1", port), 20 * PATIENCE) as plain:
            connection = plain
            if context:
                connection = context.wrap_socket(plain, server_hostname="localhost")
            with connection:
                connection.sendall(request)
                while more := connection.recv(64 if leave else 65536):
                    data += more
                    if leave:
                        break
    except TimeoutError:
        raise Fault(f"no answer and no end, after {data[-200:]}") from None
    except (ConnectionError, ssl.SSLError):
        pass
    return data


class Requests(failing_memory.Failing):
    """One request of a kind.  Not one block of memory may be left behind."""

    def __init__(self, directory, kind, *settings, **rest):
        self.kind = kind
        super().__init__(directory, *settings, control=Control, **rest)
        request, self.status = failing_memory.KINDS[kind]
        self.right = self.status and said(exchange(self.server.port, request, context=self.context))

    def start(self):
        self.blocks = None
        super().start()
        self.check_baseline()
        self.blocks = self.settled_blocks()

    def settled_blocks(self):
        """Those that are alive with no connection left."""
        time.sleep(0.2)
        return self.control.n_blocks()

    def check_baseline(self):
        super().check_baseline()
        deadline = time.monotonic() + 10 * PATIENCE
        while self.blocks and self.control.n_blocks() > self.blocks:
            if time.monotonic() > deadline:
                raise Fault(f"{self.control.n_blocks()} blocks of memory and not {self.blocks}")
            time.sleep(0.005)

    @property
    def context(self):
        return getattr(self.server, "context", None)

    def attempt(self, k, variant):
        request, status = failing_memory.KINDS[self.kind]
        self.control.arm_call(k, variant)
        try:
            reply = exchange(self.server.port, request, status is None, self.context)
            if status is None:
                time.sleep(0.02)
        finally:
            self.control.disarm()
        failed = self.control[failing_memory.FAILED]
        self.check_alive()
        if status is not None:
            self.judge(reply, failed)
        self.check_baseline()
        return failed

    def judge(self, reply, failed):
        failing_memory.judge(reply, self.status, failed)
        head, end, data = reply.partition(b"\r\n\r\n")
        is_whole = end and failing_memory.body_of(head, data)[1]
        if is_whole and b'"error"' not in data and said(reply) not in (None, self.right):
            raise Fault(f"another answer: {said(reply)[:200]} and not {self.right[:200]}")


class Tls(Requests):
    """The same through TLS, and the certificate is read again meanwhile."""

    def __init__(self, directory, kind):
        super().__init__(directory, kind, server=TlsServer)

    def attempt(self, k, variant):
        self.server.process.send_signal(signal.SIGHUP)
        return super().attempt(k, variant)


class Everything(Requests):
    """With publishers of KV events and traces, and a log in JSON."""

    def __init__(self, directory, kind):
        super().__init__(directory, kind, *publishers(), "--log-format", "json")


def publishers():
    return ("--otlp-endpoint", "http://127.0.0.1:9", "--kv-events", "tcp://127.0.0.1:*")


def small_prompt(n, seed):
    """Tokens of a small vocabulary."""
    return [token % 200 + 20 for token in prompt_of(n, seed)]


class Disk:
    """Requests that do not fit the memory together: blocks are evicted to files and read again."""
    PROMPTS = [small_prompt(300 + 20 * seed, seed) for seed in range(6)]

    def __init__(self, directory, model):
        self.directory, self.model = directory, model
        self.control = Control(directory)
        self.n_asked = 0
        self.start()
        self.right = [self.ask(i) for i in range(len(self.PROMPTS))]

    def start(self):
        self.server = Server(self.directory, *SETTINGS, "--kv-cache-memory", "640K",
                             "--max-model-len", 512, "--kv-disk-path", self.directory / "cache",
                             model=self.model, prefix=self.control.prefix)

    def ask(self, i, salt="none"):
        request = failing_memory.completion(prompt=self.PROMPTS[i], max_tokens=4, cache_salt=salt,
                                            return_token_ids=True)
        reply = exchange(self.server.port, request)
        return said(reply)

    def attempt(self, k, variant):
        self.control.arm_call(k, variant)
        try:
            answers = []
            for _ in range(2):
                self.n_asked += 1
                i = self.n_asked % len(self.PROMPTS)
                answers.append((i, self.ask(i)))
        finally:
            self.control.disarm()
        if self.server.process.poll() is not None:
            raise Fault(f"died with {self.server.process.returncode}: {self.server.log[-600:]}")
        failed = self.control[failing_memory.FAILED]
        for i, answer in answers:
            if answer != self.right[i] and (answer or not failed):
                raise Fault(f"another answer: {answer} and not {self.right[i]}")
        self.server.wait_idle()
        return failed

    def replace(self):
        self.control.disarm()
        self.server.process.kill()
        self.server.process.wait()
        self.start()

    def close(self):
        """A restart finds sound files only, and the same answers."""
        self.control.disarm()
        if self.server.stop() != 0:
            raise Fault(f"did not end well: {self.server.log[-600:]}")
        self.start()
        answers = [self.ask(i) for i in range(len(self.PROMPTS))]
        m = self.server.metrics()
        if answers != self.right or m["quire_kv_disk_refused_total"]:
            raise Fault(f"{m['quire_kv_disk_refused_total']:.0f} files were refused")
        if not m["quire_kv_disk_hits_total"]:
            raise Fault("nothing was found on the disk")
        if self.server.stop() != 0:
            raise Fault(f"did not end well: {self.server.log[-600:]}")


class KilledDisk(Disk):
    """The same, and the k-th call kills the server.  The next one removes what is unfinished, finds
    sound files only, and is the one to be killed after it."""

    def attempt(self, k, variant):
        salt = f"{k}.{variant}"
        self.control.arm_call(k, variant)
        self.control[failing_memory.ARMED] = 2
        for i in (0, 1, 2):
            self.ask(i, salt)
        self.control.disarm()
        self.replace()
        failed = self.control[failing_memory.FAILED]
        if list((self.directory / "cache").glob("*/*.tmp")):
            raise Fault("an unfinished file is left")
        if [self.ask(i, salt) for i in (0, 1, 2)] != self.right[:3]:
            raise Fault("another answer")
        if self.server.metrics()["quire_kv_disk_refused_total"]:
            raise Fault("a file was refused")
        return failed


class Start:
    """A start ends with a sentence, or serves all the same."""

    settings, make_server = SETTINGS, Server
    aborts_of_libraries = ("pipe2", "clone3", "clone", "epoll_ctl", "mmap", "mprotect",
                           "munmap")

    def __init__(self, directory, model):
        self.directory, self.model = directory, model
        self.control = Control(directory)
        self.control.n_before_main = n_calls_before_main(self.control)

    def attempt(self, k, variant):
        self.control.arm_call(k, variant)
        return failing_memory.judge_start(self.control, self.directory, self.model, self.settings,
                                          self.make_server)

    def replace(self):
        self.control.disarm()

    close = replace


class FullStart(Start):
    """With everything that a start may open."""

    make_server = TlsServer

    def __init__(self, directory, model):
        super().__init__(directory, model)
        self.settings = (*SETTINGS, *publishers(), "--kv-disk-path", directory / "cache",
                         "--kv-offload-size", "8M")


class Shutdown:
    """SIGTERM while a stream runs, with a cache to be saved: the end comes all the same."""

    aborts_of_libraries = ("munmap",)

    def __init__(self, directory, model):
        self.directory, self.model = directory, model
        self.control = Control(directory)
        self.server = None

    def attempt(self, k, variant):
        self.server = server = Server(
            self.directory, *SETTINGS, "--shutdown-timeout", 5, "--kv-disk-path",
            self.directory / "cache", model=self.model, prefix=self.control.prefix)
        server.complete(small_prompt(200, k), max_tokens=4)
        request = failing_memory.completion(prompt="x", max_tokens=900, stream=True)
        reader = threading.Thread(target=exchange, args=(server.port, request))
        with server.taking(1):
            reader.start()
        self.control.arm_call(k, variant)
        server.terminate()
        try:
            status = server.process.wait(30 * PATIENCE)
        except subprocess.TimeoutExpired:
            raise Fault(f"no end: {server.log[-600:]}") from None
        finally:
            self.control.disarm()
        reader.join()
        last = server.log.strip().splitlines()[-1]
        if status != 0 and not (status == 1 and " error " in last):
            raise Fault(f"ended with {status}: {server.log[-600:]}")
        return self.control[failing_memory.FAILED]

    def replace(self):
        self.control.disarm()
        if self.server.process.poll() is None:
            self.server.process.kill()
            self.server.process.wait()

    close = replace


def sweep(phase, first=1, step=1, every_variant=True, most=1 << 30):
    """Lets calls fail, one in an attempt, until attempts end before it comes to that.  Yields for
    each attempt the call, how many failed, and a fault or None."""
    n_quiet = n_faults = 0
    for i in range(most):
        k = first + step * (i // N_VARIANTS if every_variant else i)
        try:
            failed, fault = phase.attempt(k, i % N_VARIANTS), None
            n_quiet = 0 if failed else n_quiet + 1
        except (Fault, OSError, AssertionError, ValueError) as why:
            failed, n_quiet = phase.control[failing_memory.FAILED], 0
            kind = Fault
            if isinstance(why, LibraryEnds) or phase.control.is_abort_of_library(
                    why, getattr(phase, "aborts_of_libraries", ())):
                kind = LibraryEnds
            fault = kind(f"call {k} ({phase.control.name}): {type(why).__name__}: {why}")
            phase.replace()
            n_faults += kind is Fault
        yield phase.control.name, failed, fault
        if n_quiet == N_QUIET or n_faults == MOST_FAULTS:
            return


def phases(model):
    """Name and maker, for a directory, of each phase; the model is a tiny one."""
    made = {"start": lambda directory: Start(directory, model),
            "full_start": lambda directory: FullStart(directory, model),
            "disk": lambda directory: Disk(directory, model),
            "killed_disk": lambda directory: KilledDisk(directory, model),
            "end": lambda directory: Shutdown(directory, model)}
    for kind in failing_memory.KINDS:
        made[kind] = lambda directory, kind=kind: Requests(directory, kind)
    for name, make in (("tls", Tls), ("everything", Everything)):
        for kind in ("whole", "streamed", "left"):
            made[f"{name}_{kind}"] = lambda directory, make=make, kind=kind: make(directory, kind)
    return made
