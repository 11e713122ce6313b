#!/usr/bin/env python3
"""Writes a wheel of an installed tree: a Python package with the program, its data and the shared
libraries that it needs.  Prints the wheel's path.

    make_wheel.py TREE --version 0.2.0 --out DIR [--sysroot /] [--cuda]

The C library and libstdc++ are the system's, as manylinux has it; the wheel's tag names the C library that
is needed at least.  All other libraries go to quire_server/lib, each with the licence of its Debian
package, the general licences that these name, and a list of packages and versions; the program finds them there by its RPATH, which they inherit.  Times are SOURCE_DATE_EPOCH.
With --cuda the wheel is quire_server_cuda, which takes cuBLASLt from the package nvidia-cublas.
It needs readelf, patchelf and dpkg."""
import argparse
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "quire_server"
# What manylinux lets a wheel take from the system.
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|gcc_s|stdc\+\+))\.so\.\d+$")
# From which version of libstdc++'s symbols on manylinux asks for which C library.
LIBSTDCXX = {(3, 4, 29): (2, 34), (3, 4, 30): (2, 35), (3, 4, 31): (2, 39)}
SUMMARY = "Inference server for language models and long texts, with the HTTP APIs of OpenAI and Anthropic"
SOURCES = ("The libraries in quire_server/lib are those of these packages of Debian, unchanged.  Their sources are in\n"
           "Debian's archive, and of each version at https://snapshot.debian.org.\n\n")
# Of the CUDA that the program is built with, and where its Python package puts cuBLASLt.
CUDA_MAJOR = 13
COMMON = pathlib.Path("/usr/share/common-licenses")
CUDA_LIBRARIES = f"$ORIGIN/../../nvidia/cu{CUDA_MAJOR}/lib"


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def folders(sysroot, machine):
    """Where Debian has the libraries of an architecture."""
    return [sysroot / place / f"{machine}-linux-gnu" for place in ("lib", "usr/lib")]


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "--dynamic", "--wide", path))


def closure(binary, places):
    """The libraries that the program needs, and those that these need: {name: path}."""
    found, open_names = {}, needed(binary)
    while open_names:
        name = open_names.pop()
        if name in found or SYSTEM.match(name):
            continue
        paths = [place / name for place in places if (place / name).exists()]
        if not paths:
            sys.exit(f"make_wheel.py: {name} is in none of {', '.join(map(str, places))}")
        found[name] = paths[0]
        open_names += needed(paths[0])
    return found


def versions(paths, prefix):
    """The versions of a library's symbols that the files need: {(2, 34), …}."""
    return {tuple(map(int, version.split("."))) for path in paths
            for version in re.findall(rf"\b{prefix}_(\d+(?:\.\d+)+)", run("readelf", "--version-info", "--wide", path))}


def least_glibc(paths):
    """The C library that the files need at least, or that systems with their libstdc++ have: (2, 35)."""
    least = max(versions(paths, "GLIBC"))
    return max([least, *(glibc for version, glibc in LIBSTDCXX.items() if version <= max(versions(paths, "GLIBCXX")))])


def licence_of(library, sysroot):
    """The Debian package that a library is from, with its version, and its licence."""
    if str(sysroot) == "/":
        path = library.resolve()
        # dpkg may know the file by the name without /usr, where the two are one.
        names = [str(path), str(path).removeprefix("/usr")]
        owner = next(done.stdout.split(":")[0] for name in names
                     if not (done := subprocess.run(["dpkg", "-S", name], capture_output=True, text=True,
                                                    check=False)).returncode)
        version = run("dpkg-query", "--show", "--showformat=${Version}\n", owner).split("\n")[0]
        return (owner, version), (pathlib.Path("/usr/share/doc") / owner / "copyright").read_bytes()
    # scripts/ci/arm_sysroot.sh writes which package a file of a sysroot is from.
    owners = {path: (owner, version) for path, owner, version in
              (line.split() for line in (sysroot / "owners").read_text().splitlines())}
    owner = owners[str(library.relative_to(sysroot))]
    return owner, (sysroot / "usr/share/doc" / owner[0] / "copyright").read_bytes()


def general_licences(texts):
    """The licences that texts of Debian's packages name by their place there: {name: its text}."""
    names = {name.decode() for text in texts for name in re.findall(rb"/usr/share/common-licenses/([A-Z][\w.-]*\w)", text)}
    return {name: (COMMON / name).read_bytes() for name in names if (COMMON / name).exists()}


class Wheel:
    """A wheel that is being written; its files are recorded as they come."""

    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        self.record = []
        # A zip file knows no time before 1980.
        self.time = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800))[:6]

    def add(self, name, data, is_program=False):
        info = zipfile.ZipInfo(name, self.time)
        info.create_system = 3
        info.external_attr = (0o100755 if is_program else 0o100644) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}\n")

    def finish(self, info_folder):
        name = f"{info_folder}/RECORD"
        self.record.append(f"{name},,\n")
        info = zipfile.ZipInfo(name, self.time)
        info.create_system = 3
        info.external_attr = 0o100644 << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, "".join(self.record))
        self.zip.close()


def metadata(name, version, is_cuda):
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: {SUMMARY}",
             "License: Apache-2.0", "Requires-Python: >=3.8", "Classifier: Operating System :: POSIX :: Linux",
             "Classifier: License :: OSI Approved :: Apache Software License"]
    if is_cuda:
        lines.append(f"Requires-Dist: nvidia-cublas>={CUDA_MAJOR},<{CUDA_MAJOR + 1}")
    lines.append("Description-Content-Type: text/markdown")
    return "\n".join(lines) + "\n\n" + (ROOT / "scripts/packaging/wheel/README.md").read_text()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tree", type=pathlib.Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--sysroot", type=pathlib.Path, default=pathlib.Path("/"))
    parser.add_argument("--cuda", action="store_true")
    asked = parser.parse_args()
    binary = asked.tree / "bin/quire"
    header = run("readelf", "--file-header", binary)
    machine = "aarch64" if "AArch64" in header else "x86_64"
    libraries = closure(binary, folders(asked.sysroot, machine))
    rpath = "$ORIGIN/../lib" + (":" + CUDA_LIBRARIES if asked.cuda else "")
    run("patchelf", "--force-rpath", "--set-rpath", rpath, binary)
    glibc = least_glibc([binary, *libraries.values()])
    name = "quire-server-cuda" if asked.cuda else "quire-server"
    stem = f"{name.replace('-', '_')}-{asked.version}"
    tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{machine}"
    path = asked.out / f"{stem}-{tag}.whl"
    wheel = Wheel(path.with_suffix(".new"))
    for source in sorted((ROOT / "scripts/packaging/wheel").glob("*.py")):
        wheel.add(f"{PACKAGE}/{source.name}", source.read_bytes())
    wheel.add(f"{PACKAGE}/bin/quire", binary.read_bytes(), is_program=True)
    for library, place in sorted(libraries.items()):
        wheel.add(f"{PACKAGE}/lib/{library}", place.read_bytes(), is_program=True)
    for source in sorted(path for path in (asked.tree / "share/quire").rglob("*") if path.is_file()):
        wheel.add(f"{PACKAGE}/share/quire/{source.relative_to(asked.tree / 'share/quire')}", source.read_bytes())
    # What pip puts beside the program's name: the manual page and the completions.
    share = asked.tree / "share"
    for source in sorted(path for path in share.rglob("*") if path.is_file() and share / "quire" not in path.parents):
        wheel.add(f"{stem}.data/data/share/{source.relative_to(share)}", source.read_bytes())
    info = f"{stem}.dist-info"
    licences = dict(licence_of(place, asked.sysroot) for place in libraries.values())
    for (owner, _), text in sorted(licences.items()):
        wheel.add(f"{info}/licenses/{owner}", text)
    for general, text in sorted(general_licences(licences.values()).items()):
        wheel.add(f"{info}/licenses/common-licenses/{general}", text)
    packages = "".join(f"{owner} {version_there}\n" for owner, version_there in sorted(licences))
    wheel.add(f"{info}/licenses/PACKAGES", (SOURCES + packages).encode())
    for notice in ("LICENSE", "THIRD_PARTY_NOTICES.txt"):
        wheel.add(f"{info}/licenses/{notice}", (asked.tree / "share/quire" / notice).read_bytes())
    wheel.add(f"{info}/METADATA", metadata(name, asked.version, asked.cuda).encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.add(f"{info}/entry_points.txt", f"[console_scripts]\nquire = {PACKAGE}:main\n".encode())
    wheel.finish(info)
    os.replace(path.with_suffix(".new"), path)
    print(path)


if __name__ == "__main__":
    main()
