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
