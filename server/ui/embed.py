#!/usr/bin/env python3
"""Writes the files of the pages as C: server/ui/files.h says what a file is.

    server/ui/embed.py OUT.c FILE... [--library NAME FILE LICENCE]... [--notices FILE OUT.txt]

chat.html becomes /, inspect.html /inspect, docs.html /docs, and every other file /ui/NAME.  A library becomes
/ui/lib/NAME, compressed.  Its licence is added to /ui/licenses.txt, and its name to the list of
/ui/libraries.js, by which the pages know what they can load.  OUT.txt is FILE, which names what the program
holds of others, with these licences behind it."""
import argparse
import gzip
import hashlib
import json
import pathlib

PATHS = {"chat.html": "/", "inspect.html": "/inspect", "docs.html": "/docs"}
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".js": "text/javascript; charset=utf-8", ".txt": "text/plain; charset=utf-8"}


def c_string(data):
    """Octal escapes of three digits each: the next character cannot become a part of one."""
    plain = {byte: chr(byte) for byte in range(32, 127) if byte not in b'"\\?'}
    escaped = [plain.get(byte) or f"\\{byte:03o}" for byte in data]
    return "\n    ".join(f'"{"".join(escaped[i:i + 80])}"' for i in range(0, len(data), 80))


def c_file(path, data, is_gzip):
    if is_gzip:
        data = gzip.compress(data, mtime=0)
    etag = hashlib.sha256(data).hexdigest()[:32]
    kind = TYPES[pathlib.PurePath(path).suffix or ".html"]
    name = "file_" + "".join(each if each.isalnum() else "_" for each in path[1:])
    content = f"static const unsigned char {name}[] =\n    {c_string(data)};\n"
    row = (f'    {{"{path}", "{kind}", "\\"{etag}\\"", {name}, sizeof({name}) - 1, '
           f"{str(is_gzip).lower()}}},\n")
    return content, row


RULE = "-" * 79 + "\n"


def licences_of(options):
    """A text for each licence: the libraries that have it, and what it says."""
    licences = {}
    for name, _, licence in options.library:
        licences.setdefault(licence, []).append(name)
    return [f"{', '.join(names)}\n\n{pathlib.Path(file).read_text(encoding='utf-8')}"
            for file, names in licences.items()]


def files_of(options):
    """Yields path, content, and whether it is embedded compressed."""
    for name in options.files:
        file = pathlib.Path(name)
        yield PATHS.get(file.name, f"/ui/{file.name}"), file.read_bytes(), False
    names = [name for name, _, _ in options.library]
    listed = f"/* Written by embed.py. */\nexport const LIBRARIES = {json.dumps(names)};\n"
    yield "/ui/libraries.js", listed.encode(), False
    for name, library, _ in options.library:
        yield f"/ui/lib/{name}", pathlib.Path(library).read_bytes(), True
    if options.library:
        yield "/ui/licenses.txt", f"\n{RULE}".join(licences_of(options)).encode(), True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--library", nargs=3, action="append", default=[])
    parser.add_argument("--notices", nargs=2)
    options = parser.parse_args()
    if options.notices:
        of_all = pathlib.Path(options.notices[0]).read_text(encoding="utf-8")
        of_pages = [f"The pages at / have, compressed: {text}" for text in licences_of(options)]
        pathlib.Path(options.notices[1]).write_text(f"\n{RULE}".join([of_all, *of_pages]), encoding="utf-8")
    contents, rows = zip(*(c_file(*file) for file in files_of(options)))
    pathlib.Path(options.out).write_text(f"""/* Written by server/ui/embed.py. */
#include "server/ui/files.h"

#pragma GCC diagnostic ignored "-Woverlength-strings"

{"".join(contents)}
const struct ui_file ui_files[] = {{
{"".join(rows)}}};
const size_t ui_n_files = sizeof(ui_files) / sizeof(*ui_files);
""", encoding="ascii")


if __name__ == "__main__":
    main()
