"""The files of a public git repository at one commit, read from its git directory.

A repository is fetched once, that one commit alone, into a folder of bare repositories.  A folder
of mirrors that exist already saves the network: MIRRORS/owner+name or MIRRORS/owner+name/repo.
"""
import pathlib
import re
import subprocess


class NotThere(Exception):
    """The commit can be had neither from a mirror nor from the network."""


def git(directory, *arguments):
    return subprocess.run(["git", "-C", str(directory), *arguments], check=True,
                          capture_output=True).stdout


def has_commit(directory, commit):
    done = subprocess.run(["git", "-C", str(directory), "cat-file", "-e", f"{commit}^{{commit}}"],
                          capture_output=True, check=False)
    return done.returncode == 0


def locate(name, commit, mirrors, clones):
    """The git directory that holds the commit of the repository owner/name."""
    folder = name.replace("/", "+")
    for mirror in [mirrors / folder / "repo", mirrors / folder] if mirrors else []:
        if mirror.is_dir() and has_commit(mirror, commit):
            return mirror
    clone = clones / folder
    if not clone.is_dir():
        clone.mkdir(parents=True)
        git(clone, "init", "--quiet", "--bare")
    if not has_commit(clone, commit):
        try:
            git(clone, "fetch", "--quiet", "--depth", "1", f"https://github.com/{name}.git", commit)
        except subprocess.CalledProcessError as error:
            raise NotThere(f"{name} at {commit}: {error.stderr.decode().strip()}") from None
    return clone


def listing(directory, commit, pattern):
    """(path, blob id) of the regular files whose path matches, in git's order."""
    rows = git(directory, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")
    for row in filter(None, rows):
        meta, path = row.split(b"\t", 1)
        mode, kind, blob = meta.split()
        path = path.decode("utf-8", "replace")
        if kind == b"blob" and mode != b"120000" and re.search(pattern, path):
            yield path, blob.decode()


def read_all(directory, blobs):
    """The contents of the blobs, in order; None for one that the mirror lacks."""
    command = ["git", "-C", str(directory), "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for blob in blobs:
            process.stdin.write(blob.encode() + b"\n")
            process.stdin.flush()
            header = process.stdout.readline().split()
            if header[-1] == b"missing":
                yield None
                continue
            yield process.stdout.read(int(header[2]))
            process.stdout.read(1)  # the line break behind every object
        process.stdin.close()


def files(directory, commit, pattern):
    """(path, text) of the matching files."""
    rows = list(listing(directory, commit, pattern))
    for (path, _), data in zip(rows, read_all(directory, [blob for _, blob in rows])):
        if data is not None:
            text = data.decode("utf-8", "replace").replace("\ufeff", "")
            yield path, text.replace("\r\n", "\n").replace("\r", "\n")


def path_of(text):
    """A folder named on the command line, or None."""
    return pathlib.Path(text) if text else None
