#!/usr/bin/env python3
"""Checks that each room includes only what it may, and that every header compiles alone.

    scripts/ci/check_rooms.py [ROOT]

A room is a folder of engine/, server/ or cuda/; a file belongs to the longest name below that its
path begins with.  Each line says which rooms it may include besides itself, and which libraries
besides libc and POSIX.  A room may name only rooms above it in the table, so nothing includes in a
circle.  Debian puts every library's headers into /usr/include, so a wrong include compiles; only
this notices.

Includes are followed: the headers of a room bring others with them.  What a room sees that way
without including it itself is in SEEN.  A header that brings a room or a library somewhere new is a
fault, and so is an entry of SEEN that nothing brings any more."""
import collections
import functools
import pathlib
import re
import subprocess
import sys

# room: (rooms, libraries)
ROOMS = {
    "engine/base": ("", "jansson"),
    "engine/device": ("engine/base", ""),
    "engine/gguf": ("engine/base engine/device", "jansson"),
    "engine/cpu": ("engine/base engine/device", ""),
    "cuda": ("engine/base engine/device", "cuda"),
    "engine/tokenizer": ("engine/base engine/gguf", "jansson pcre2 utf8proc"),
    "engine/template": ("engine/base", "jansson utf8proc"),
    "engine/model": ("engine/base engine/device engine/gguf", "jansson"),
    "engine/quantise": ("engine/base engine/device engine/gguf engine/model", "jansson"),
    "engine/sparsity": ("engine/base engine/device", "jansson"),
    # Its one C++ file is the whole of the library that the engine sees.
    "engine/grammar": ("engine/base engine/tokenizer", "jansson xgrammar"),
    "engine/request": ("engine/base engine/device engine/grammar engine/tokenizer", ""),
    "engine/kv": ("engine/base engine/device engine/request", ""),
    "engine/speculate": ("engine/base", ""),
    "engine/schedule": ("engine/base engine/device engine/request engine/kv engine/speculate", ""),
    "engine": ("engine/base engine/device engine/grammar engine/tokenizer engine/model "
               "engine/request engine/kv engine/schedule", ""),
    "engine/tune": ("engine engine/base engine/device engine/model engine/sparsity", "jansson"),
    "server/json": ("engine/base", "jansson"),
    "server/http": ("engine/base", "uv microhttpd gnutls"),
    "server/settings": ("engine engine/base engine/gguf engine/tokenizer engine/template engine/device engine/model "
                        "engine/request engine/sparsity server/json", "uv jansson"),
    "server/hub": ("engine/base engine/gguf server/json server/settings", "curl gnutls jansson"),
    "server/otlp": ("engine/base server/json server/http server/settings", ""),
    "server/replicas": ("engine engine/base", ""),
    "server/api": ("engine engine/base engine/grammar engine/request engine/template engine/tokenizer server/json "
                   "server/http server/settings server/otlp server/replicas", "uv jansson"),
    "server/ops": ("engine engine/base engine/device engine/model engine/tokenizer server/json server/http "
                   "server/settings server/api server/otlp server/replicas", "jansson"),
    "server/ui": ("engine engine/base server/json server/http server/api", ""),
    "server/kv_events": ("engine/base engine/device engine/kv", "zmq"),
    "server/bench": ("engine engine/base engine/device engine/model engine/request server/json "
                     "server/settings", ""),
    "server/tune": ("engine engine/base engine/model engine/sparsity engine/tokenizer engine/tune "
                    "server/json server/settings server/bench", ""),
    "server/terminal": ("engine engine/base server/json server/http server/settings", "jansson"),
    "server": ("engine engine/base engine/model engine/quantise engine/tokenizer server/json server/http "
               "server/settings server/hub server/api server/ops server/otlp server/replicas server/kv_events server/ui server/bench server/tune", "uv jansson"),
    # The only file that knows which devices there are.
    "server/devices.c": ("engine/base engine/cpu engine/device cuda server server/settings", ""),
    "server/command_model.c": ("engine/device server server/hub server/settings", ""),
    "server/serve_command.c": ("engine/base engine/device server server/settings", ""),
    "server/main.c": ("engine/base engine/device server server/hub server/json server/settings server/bench "
                      "server/terminal server/tune", "uv"),
}

# room: what it sees through headers that it includes, and may not include itself
SEEN = {
    "engine/schedule": "engine/tokenizer",
    "engine": "engine/speculate",
    "engine/tune": "engine/kv engine/request engine/schedule",
    "server/settings": "engine/kv engine/schedule",
    "server/otlp": "jansson",
    "server/replicas": "engine/device engine/kv engine/request engine/schedule",
    "server/api": "engine/device engine/kv engine/schedule",
    "server/ops": "engine/grammar engine/kv engine/request engine/schedule uv",
    "server/ui": ("engine/device engine/grammar engine/kv engine/request engine/schedule "
                  "engine/tokenizer jansson server/settings uv"),
    "server/bench": "engine/kv engine/schedule engine/sparsity jansson",
    "server/tune": "engine/device engine/kv engine/request engine/schedule jansson",
    "server/terminal": "engine/device engine/request",
    "server": ("engine/device engine/grammar engine/kv engine/request engine/schedule "
               "engine/sparsity"),
    "server/devices.c": "engine/request jansson",
    "server/command_model.c": "engine/base engine/request jansson",
    "server/serve_command.c": "engine/request jansson",
    "server/main.c": "engine engine/kv engine/request engine/schedule jansson server/http",
}

# Members of struct kv_sequence, and the files that may open them: all others ask these files.
PARTS = {
    "prefix": "engine/kv/sequence_prefix.c",
    "state": "engine/kv/sequence_state.c",
    "reading": "engine/kv/read_ahead.c",
    "selection": "engine/kv/selection.c engine/kv/kinds/selected.c engine/kv/kinds/moved.c",
    "swap": "engine/kv/swap.c",
}
PART = re.compile(r"\b(?:kv|other)(?:->|\.)(" + "|".join(PARTS) + r")\b")

# Files of engine/kv below the sequences, and the headers above them.
KV_CACHES = ("kv_space page_io page_list page_pool offer prefix_block prefix_cache prefix_disk prefix_feed "
             "prefix_host state_cache").split()
KV_ABOVE = "kind kv_sequence lists reclaim swap sequence_prefix sequence_state".split()

LIBRARIES = [
    (r"uv(/|\.h$)", "uv"), (r"microhttpd\.h$", "microhttpd"), (r"gnutls/", "gnutls"), (r"curl/", "curl"), (r"jansson\.h$", "jansson"),
    (r"pcre2\.h$", "pcre2"), (r"utf8proc\.h$", "utf8proc"), (r"cmocka\.h$", "cmocka"),
    (r"(xgrammar|dlpack)/", "xgrammar"), (r"zmq\.h$", "zmq"),
    (r"(cuda|cublas|cooperative_groups|mma\.h$|nvtx|cutlass/|cute/)", "cuda"),
    (r"(cblas|openblas)", "blas"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
SOURCES = ".c", ".h", ".cc", ".cu", ".cuh"


@functools.cache
def room_of(path):
    """The room of a file, by the longest prefix."""
    names = [path, *(str(parent) for parent in pathlib.PurePath(path).parents)]
    return next((name for name in names if name in ROOMS), None)


@functools.cache
def library_of(name):
    return next((library for form, library in LIBRARIES if re.match(form, name)), None)


def check_table():
    seen = set()
    for room, (rooms, _) in ROOMS.items():
        for other in rooms.split():
            if other not in seen:
                yield f"the table lets {room} include {other}, which is not above it"
        seen.add(room)


def check_includes(root, path):
    room = room_of(path)
    rooms, libraries = ROOMS[room]
    for kind, name in INCLUDE.findall((root / path).read_text()):
        if kind == "<":
            library = library_of(name)
            if library and library not in libraries.split():
                yield f"{path}: {room} may not include <{name}>"
        elif not (root / name).is_file():
            # Named from the root, so that the room shows.
            yield f'{path}: "{name}" is no file of this tree, seen from its root'
        elif room_of(name) not in (room, *rooms.split()):
            yield f'{path}: {room} may not include "{name}"'


def includes_of(root, path, cache):
    if path not in cache:
        cache[path] = INCLUDE.findall((root / path).read_text())
    return cache[path]


def ways_of(root, path, cache):
    """What a file sees through its includes, rooms and libraries: the files on the first way."""
    ways, known, todo = {}, {path}, [(path,)]
    while todo:
        way = todo.pop(0)
        for kind, name in includes_of(root, way[-1], cache):
            seen = library_of(name) if kind == "<" else room_of(name)
            if seen:
                ways.setdefault(seen, (*way, name))
            if kind == '"' and name not in known and (root / name).is_file():
                known.add(name)
                todo.append((*way, name))
    return ways


def check_seen(root, paths):
    cache, seen = {}, collections.defaultdict(dict)
    for path in paths:
        room = room_of(path)
        own = {room, *ROOMS[room][0].split(), *ROOMS[room][1].split()}
        for what, way in ways_of(root, path, cache).items():
            if what not in own:
                seen[room].setdefault(what, way)
    for room in ROOMS:
        listed = set(SEEN.get(room, "").split())
        for what in sorted(seen[room].keys() - listed):
            yield f"{room} sees {what}, which is not in SEEN: {' -> '.join(seen[room][what])}"
        for what in sorted(listed - seen[room].keys()):
            yield f"SEEN says that {room} sees {what}, which nothing brings"


def check_kv(root, path):
    """The parts of a sequence are each opened by their own files, and no cache knows a sequence."""
    text = (root / path).read_text()
    for name in sorted(set(PART.findall(text))):
        if path not in PARTS[name].split():
            yield f"{path}: opens kv_sequence.{name}, which is for {PARTS[name]}"
    if pathlib.PurePath(path).stem in KV_CACHES and path.startswith("engine/kv/"):
        for _, name in INCLUDE.findall(text):
            if name in [f"engine/kv/{above}.h" for above in KV_ABOVE]:
                yield f'{path}: a cache may not include "{name}", which is above it'


def compiles(root, text, *arguments):
    return subprocess.run(["cc", "-std=gnu17", "-Wall", "-Wextra", "-Werror", "-Wno-psabi",
                           "-fsyntax-only", "-I.", "-x", "c", *arguments], cwd=root, input=text,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)


def comes_first(root, path):
    """Tells whether the header is the first that its own source includes: then each build compiles it alone."""
    if path.startswith("cuda/"):
        return False  # some builds leave it out
    source = (root / path).with_suffix(".c")
    includes = INCLUDE.findall(source.read_text()) if source.is_file() else []
    return includes[:1] == [('"', path)]


def check_alone(root, path, has_cuda):
    """A .cuh needs the CUDA compiler, which builds it anyway."""
    needs_cuda = path.startswith("cuda/") and not path.endswith("cuda/cuda.h")
    if path.endswith(".h") and (has_cuda or not needs_cuda) and not comes_first(root, path):
        done = compiles(root, "", path)
        if done.returncode:
            yield f"{path}: does not compile alone:\n{done.stderr}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                        pathlib.Path(__file__).resolve().parents[2])
    paths = sorted(str(path.relative_to(root)) for top in ("engine", "server", "cuda")
                   for path in (root / top).rglob("*") if path.suffix in SOURCES)
    has_cuda = compiles(root, "#include <cublasLt.h>", "-").returncode == 0
    faults = list(check_table()) if paths else [f"no sources found in {root}"]
    for path in paths:
        if not room_of(path):
            faults.append(f"{path}: in no room")
            continue
        faults += [*check_includes(root, path), *check_kv(root, path), *check_alone(root, path, has_cuda)]
    faults += check_seen(root, [path for path in paths if room_of(path)])
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        sys.exit(f"{len(faults)} faults")


if __name__ == "__main__":
    main()
