#!/usr/bin/env python3
"""Checks that no function or table of the program is global without need.

    scripts/ci/check_symbols.py BUILD_DIR

Reads with nm which symbols the objects of engine/ and server/ define and use.  A global symbol must
be used by another object of the build, one of tests/ included; else it is static, or dead.  What
only cuda/ uses is found by its name in the sources there, because a build may be without CUDA.
Exits 77 where there is no nm or no object."""
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = "engine", "server"
DEFINED = "TDBR"  # code, data, zeroed and read-only data; weak ones are C++'s inline functions
ALLOWED = {"main"}


def symbols_of(objects):
    """What each object defines, and what any object uses that it does not define."""
    done = subprocess.run(["nm", "-A", "-g", *map(str, objects)], capture_output=True, text=True,
                          check=True)
    defined, used = {}, set()
    for line in done.stdout.splitlines():
        found = re.match(r"(.+?):\s*[0-9a-f]* ([A-Za-z]) (\S+)$", line)
        if found and found[2] == "U":
            used.add(found[3])
        elif found and found[2] in DEFINED:
            defined[found[3]] = found[1]
    return defined, used


def is_instrumented(name):
    """What compilers add to an object under a sanitizer or for coverage."""
    return name.startswith(("__", "_Z"))


def unused(build, root=ROOT):
    """The global symbols that only their own object uses, with that object."""
    objects = sorted(build.rglob("*.o"))
    in_product = {str(path) for path in objects if path.relative_to(build).parts[0] in PRODUCT}
    if not in_product:
        return None
    defined, used = symbols_of(objects)
    named = set(re.findall(r"\w+", "".join(path.read_text(encoding="utf-8") for path in
                                           (root / "cuda").rglob("*") if path.is_file())))
    return sorted((path, name) for name, path in defined.items()
                  if path in in_product and name not in used | named | ALLOWED
                  and not is_instrumented(name))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = unused(pathlib.Path(sys.argv[1])) if shutil.which("nm") else None
    if found is None:
        print("skipped: no nm, or no object in the build", file=sys.stderr)
        sys.exit(77)
    for path, name in found:
        print(f"{path}: {name} is global, and no other object uses it")
    if found:
        sys.exit(f"{len(found)} symbols to make static, or to delete")


if __name__ == "__main__":
    main()
