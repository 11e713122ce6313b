#!/usr/bin/env python3
"""Removes a subproject that was unpacked with other patches than there are now, so that Meson unpacks it again.

Meson applies patches once, when it unpacks.  A folder that is left from before a patch changed would be built as it is.

    renew.py before NAME-VERSION     removes the folder if its patches were others
    renew.py after NAME-VERSION      notes the patches of the folder"""
import hashlib
import pathlib
import shutil
import sys

step, folder = sys.argv[1:]
here = pathlib.Path(__file__).resolve().parent
name, unpacked = folder.rsplit("-", 1)[0], here.parent / folder
digest = hashlib.sha256()
for path in sorted(here.glob(f"{name}-*.patch")) + sorted((here / name).rglob("*")):
    if path.is_file():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
note = unpacked / ".patches"
if step == "after" and unpacked.is_dir():
    note.write_text(digest.hexdigest())
elif step == "before" and unpacked.is_dir() and (not note.exists() or note.read_text() != digest.hexdigest()):
    if not list((here.parent / "packagecache").glob(f"{folder}.*")):
        sys.exit(f"subprojects/{folder} was unpacked with other patches: remove it, and Meson fetches it again")
    shutil.rmtree(unpacked)
