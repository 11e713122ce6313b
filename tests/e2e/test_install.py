"""`meson install`: the tree that it makes runs wherever it is moved, from its own files alone."""
import os
import pathlib
import subprocess
import tarfile

import pytest

from server import BINARY, MODEL, PATIENCE, ROOT

SERVED = {"LICENSE.md", "MODEL_CARD.md", "config.json", "generation_config.json",
          "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """An installed tree, moved after it was installed."""
    root = tmp_path_factory.mktemp("install")
    subprocess.run(["meson", "install", "-C", pathlib.Path(BINARY).parent, "--no-rebuild",
                    "--destdir", root / "staged"], check=True, capture_output=True,
                   timeout=60 * PATIENCE)
    [binary] = root.glob("staged/**/bin/quire")
    return binary.parents[1].rename(root / "moved here")


def test_only_what_a_server_needs_is_installed(tree):
    data = tree / "share/quire"
    assert {path.name for path in (data / "models" / MODEL.name).iterdir()} == SERVED
    assert (data / "config/quire.json").is_file() and (data / "LICENSE").is_file()
    assert [path.name for path in (tree / "bin").iterdir()] == ["quire"]


def test_a_moved_tree_serves_with_its_own_files(serve, tree, tmp_path):
    """The log names what is read.  A symbolic link to the binary leads to the same files."""
    link = tmp_path / "quire"
    link.symlink_to(tree / "bin/quire")
    server = serve("--kv-offload-size", "64M", binary=link)
    data = tree / "share/quire"
    assert f"the model's files are in {data}/models/{MODEL.name}" in server.log
    assert f"patterns of {data}/config/patterns/{MODEL.name}.json" in server.log
    assert f"filter layers of {data}/config/filters/{MODEL.name}.json" in server.log
    assert server.complete("Once upon a time", max_tokens=4)["usage"]["completion_tokens"] == 4
    reply = server.complete([65] * 300, max_tokens=4, prefill="sparse",
                            kv_policy={"type": "offload"})
    assert reply["usage"]["completion_tokens"] == 4


def test_a_binary_without_its_tree_says_what_is_missing(tree, tmp_path):
    alone = tmp_path / "bin/quire"
    alone.parent.mkdir()
    alone.write_bytes((tree / "bin/quire").read_bytes())
    alone.chmod(0o755)
    done = subprocess.run([alone, "tokenize"], input="a", capture_output=True, text=True,
                          timeout=30 * PATIENCE, check=False)
    assert done.returncode == 1 and "there is no default model" in done.stderr, done.stderr
    assert str(alone.parent) in done.stderr
    done = subprocess.run([alone, "tokenize", MODEL], input="a", capture_output=True, text=True,
                          timeout=30 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_holds_the_installed_tree_with_nothing_of_its_maker(tree):
    """The time is the commit's and the owner is root: only sources change the bytes."""
    done = subprocess.run([ROOT / "scripts/package", pathlib.Path(BINARY).parent], check=True,
                          stdout=subprocess.PIPE, text=True, timeout=120 * PATIENCE,
                          env={**os.environ, "SOURCE_DATE_EPOCH": "1000000000"})
    path = pathlib.Path(done.stdout.strip())
    name = path.name.removesuffix(".tar.gz")
    with tarfile.open(path) as tar:
        path.unlink()
        members = tar.getmembers()
        files = {member.name: tar.extractfile(member).read() for member in members
                 if member.isfile()}
    readme = files.pop(f"{name}/README.md").decode()
    assert "libmicrohttpd12" in readme and "bin/quire serve" in readme
    assert files == {f"{name}/{path.relative_to(tree)}": path.read_bytes()
                     for path in tree.rglob("*") if path.is_file()}
    folders = [member.name.split("/") for member in members]
    assert folders == sorted(folders)
    assert {(member.uid, member.gid, member.mtime) for member in members} == {(0, 0, 1000000000)}


GAPS = {"xgrammar": "grammar", "ZeroMQ": "kv_events", "CUDA": "cuda"}


def test_a_build_says_what_it_lacks(server):
    """In `quire version`, and in the log of each start."""
    told = subprocess.run([BINARY, "version"], capture_output=True, text=True, check=True).stdout
    lines = [line.removeprefix("without ") for line in told.splitlines() if line.startswith("without ")]
    assert {line.split(":")[0] for line in lines} <= set(GAPS)
    assert ("backend cuda" in told) != any(line.startswith("CUDA:") for line in lines)
    for line in lines:
        assert "; to get it: " in line and f"built without {line}" in server.log
    assert server.log.count(" built without ") == len(lines)


@pytest.fixture
def build(tmp_path):
    """build(lines): runs scripts' build_in on a folder whose program says these lines, with programs in place of
    meson and ninja that note their arguments; returns these and what was said."""
    folder, tools = tmp_path / "build", tmp_path / "tools"
    folder.mkdir()
    tools.mkdir()
    (folder / "build.ninja").touch()
    for name in ("meson", "ninja", "nvcc"):
        (tools / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/called\n')
        (tools / name).chmod(0o755)

    def run(lines, path=None):
        (folder / "quire").write_text("#!/bin/sh\ncat <<'END'\nquire 0, commit 0\n" + "".join(
            f"without {line}\n" for line in lines) + "END\n")
        (folder / "quire").chmod(0o755)
        (tmp_path / "called").write_text("")
        done = subprocess.run(
            ["bash", "-ec", '. scripts/ci/common.sh; build_in "$0"; tell_gaps "$0"', folder], cwd=ROOT,
            env={**os.environ, "PATH": f"{tools}:{path or os.environ['PATH']}"}, capture_output=True, text=True,
            check=True)
        return (tmp_path / "called").read_text().splitlines(), done.stderr

    return run


def test_a_build_that_lacks_nothing_is_not_configured_anew(build):
    called, said = build([])
    assert [line.split()[0] for line in called] == ["ninja"] and "without" not in said


@pytest.mark.parametrize("name", ["xgrammar", "CUDA"])
def test_what_was_not_found_is_looked_for_again(build, name):
    called, said = build([f"{name}: that is bad; to get it: do this"])
    assert [" ".join(line.split()[:3]) for line in called] == ["meson setup --reconfigure", f"ninja -C {called[1].split()[2]}"]
    assert f"is built without {name}: that is bad; to get it: do this" in said


def test_what_was_switched_off_stays_off(build):
    called, said = build(["CUDA: no GPU is used; to get it: meson configure BUILD -Dcuda=auto, it is disabled there"])
    assert [line.split()[0] for line in called] == ["ninja"] and "is built without CUDA" in said


def test_a_package_is_named_for_what_it_lacks(tmp_path):
    text = (ROOT / "scripts/package").read_text()
    naming = text[text.index("gaps=$(sed"):text.index("[ -z \"$gaps\" ]")]
    for lacks, suffix in (("xgrammar",), "-without-xgrammar"), (("ZeroMQ", "CUDA"), "-without-zeromq"), (
            ("xgrammar", "ZeroMQ"), "-without-xgrammar-without-zeromq"), ((), ""):
        about = "quire 0, commit 0\n" + "".join(f"without {one}: x; to get it: y\n" for one in lacks)
        done = subprocess.run(["bash", "-euc", f'about=$0; name=quire-0\n{naming}\necho "$name"', about],
                              capture_output=True, text=True, check=True)
        assert done.stdout == f"quire-0{suffix}\n"
