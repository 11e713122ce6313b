#!/usr/bin/env python3
"""Cuts files into pieces that fit through a narrow door between two machines, and joins them again.

    python pack.py pack   --out PARTS [--part-mib 56] [--piece-mib 4] [--plain] FILE ...
    python pack.py unpack --out DIR PARTS ...

PARTS/1, PARTS/2 ... hold at most part-mib each, in pieces of about piece-mib, compressed with bzip2
(for text it is as small as xz and its pieces are made and read in parallel) unless --plain.  Every
file keeps its path below the folder that all have in common.  unpack checks the digests.
"""
import argparse
import bz2
import hashlib
import json
import multiprocessing
import os
import pathlib

MIB = 1 << 20
RATIO = 3.6  # of bzip2 on this corpus: pieces of a wanted size are this much larger before


def pieces_of(path, n_bytes):
    """(offset, bytes) of each piece."""
    size = path.stat().st_size
    return [(at, min(n_bytes, size - at)) for at in range(0, max(size, 1), n_bytes)]


def make_piece(task):
    source, at, n, target, plain = task
    with source.open("rb") as file:
        file.seek(at)
        data = file.read(n)
    data = data if plain else bz2.compress(data, 9)
    target.write_bytes(data)
    return target, len(data)


def digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pack(options):
    root = pathlib.Path(os.path.commonpath([path.resolve().parent for path in options.files]))
    size = int(options.piece_mib * MIB * (1 if options.plain else RATIO))
    options.out.mkdir(parents=True, exist_ok=True)
    tasks, manifest = [], {}
    for i, path in enumerate(options.files):
        name = str(path.resolve().relative_to(root))
        cuts = pieces_of(path, size)
        manifest[name] = {"sha256": digest(path), "plain": options.plain,
                          "pieces": [f"{i}.{j:03d}" for j in range(len(cuts))]}
        tasks += [(path, at, n, options.out / f"{i}.{j:03d}", options.plain)
                  for j, (at, n) in enumerate(cuts)]
    part, room = 0, 0
    with multiprocessing.Pool() as pool:
        for target, n_bytes in pool.imap(make_piece, tasks):
            if n_bytes > room:
                part, room = part + 1, int(options.part_mib * MIB)
                (options.out / str(part)).mkdir(exist_ok=True)
            room -= n_bytes
            target.rename(options.out / str(part) / target.name)
    (options.out / "1" / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"pack: {part} parts in {options.out}")


def read_piece(task):
    path, plain = task
    data = path.read_bytes()
    return data if plain else bz2.decompress(data)


def unpack(options):
    folders = [folder for top in options.files for folder in [top, *filter(pathlib.Path.is_dir,
                                                                         top.iterdir())]]
    found = {path.name: path for folder in folders for path in folder.iterdir() if path.is_file()}
    manifest = json.loads(found["manifest.json"].read_text())
    with multiprocessing.Pool() as pool:
        for name, entry in manifest.items():
            target = options.out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            tasks = [(found[piece], entry["plain"]) for piece in entry["pieces"]]
            with target.open("wb") as file:
                for data in pool.imap(read_piece, tasks):
                    file.write(data)
            if digest(target) != entry["sha256"]:
                raise SystemExit(f"unpack: {name} is not what was packed")
    print(f"unpack: {len(manifest)} files in {options.out}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("command", choices=["pack", "unpack"])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--part-mib", type=float, default=56)
    parser.add_argument("--piece-mib", type=float, default=4)
    parser.add_argument("--plain", action="store_true", help="weights do not get smaller")
    options = parser.parse_args()
    (pack if options.command == "pack" else unpack)(options)


if __name__ == "__main__":
    main()
