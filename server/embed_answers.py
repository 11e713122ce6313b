#!/usr/bin/env python3
"""Writes the schemas of answers as C, for openapi.c: the members of components.schemas as one text.

    server/embed_answers.py answers.json OUT.c"""
import json
import pathlib
import sys


def main():
    source, out = map(pathlib.Path, sys.argv[1:])
    text = json.dumps(json.loads(source.read_text(encoding="utf-8")), separators=(",", ":"))
    data = text[1:-1].encode() + b"\0"
    lines = (",".join(map(str, data[i:i + 20])) for i in range(0, len(data), 20))
    out.write_text("/* Made from answers.json by embed_answers.py. */\n"
                   "extern const char openapi_answers[];\n"
                   "const char openapi_answers[] = {\n    " + ",\n    ".join(lines) + "};\n")


if __name__ == "__main__":
    main()
