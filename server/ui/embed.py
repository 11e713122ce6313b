#!/usr/bin/env python3
"""Writes the page as C: one HTML document with its style and script inside, its ETag, and the
Content-Security-Policy that allows these two and nothing else.

    server/ui/embed.py page.html page.css page.js OUT.c"""
import base64
import hashlib
import pathlib
import sys

POLICY = ("default-src 'none'; script-src 'sha256-{js}'; style-src 'sha256-{css}'; "
          "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
          "frame-ancestors 'none'")


def hash_of(text):
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def insert(page, place, text):
    assert page.count(place) == 1, f"the page must have one {place}"
    return page.replace(place, text)


def c_bytes(data):
    lines = (data[i:i + 20] for i in range(0, len(data), 20))
    return ",\n    ".join(",".join(map(str, line)) for line in lines)


def main():
    page, css, js = (pathlib.Path(name).read_text(encoding="utf-8") for name in sys.argv[1:4])
    assert "</script" not in js and "</style" not in css
    page = insert(insert(page, "/*CSS*/", css), "/*JS*/", js)
    data = page.encode()
    policy = POLICY.format(js=hash_of(js), css=hash_of(css))
    etag = hashlib.sha256(data + policy.encode()).hexdigest()[:32]
    pathlib.Path(sys.argv[4]).write_text(f"""/* Written by server/ui/embed.py. */
#include "server/ui/page.h"

const unsigned char page_data[] = {{
    {c_bytes(data)}}};
const size_t page_size = sizeof(page_data);
const char page_etag[] = "\\"{etag}\\"";
const char page_policy[] = "{policy}";
""")


if __name__ == "__main__":
    main()
