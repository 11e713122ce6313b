"""`meson install`: the tree that it makes runs wherever it is moved, from its own files alone."""
import base64
import csv
import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

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
    assert {path.name for path in data.iterdir()} == {"models", "config", "LICENSE", "THIRD_PARTY_NOTICES.txt"}
    assert [path.name for path in (tree / "bin").iterdir()] == ["quire"]


def comment_of(path):
    """The first comment of a source of C."""
    lines = path.read_text().split("*/")[0].split("\n")
    return "\n".join(re.sub(r"^/?[ *]{0,3}", "", line) for line in lines).strip()


def test_the_notices_have_what_the_program_holds(tree, server):
    """The texts are those of the sources: of xgrammar, of what that brings, of the pages' libraries."""
    text = (tree / "share/quire/THIRD_PARTY_NOTICES.txt").read_text()
    for name in ("utf8proc", "Copyright (c) 1991-2007 Unicode, Inc.", "CUDA runtime"):
        assert name in text
    [xgrammar] = ROOT.glob("subprojects/xgrammar-*/NOTICE") or [None]
    if xgrammar:
        picojson = comment_of(xgrammar.parent / "3rdparty/picojson/picojson.h")
        assert picojson.count("\n") > 20 and picojson in text and xgrammar.read_text().strip() in text
    libraries = re.findall(r"[\w.]+\.js", server.get("/ui/libraries.js").body.decode().split("=")[1])
    for library in libraries:
        assert re.search(rf"The pages at / have, compressed: .*{re.escape(library)}", text)


COMMANDS = ("serve", "bench", "tune", "info", "quantize", "pull")


@pytest.fixture(scope="module")
def helps():
    """The options that each command's help lists."""
    shown = {name: subprocess.run([BINARY, name, "--help-all" if name == "serve" else "--help"], capture_output=True,
                                  text=True, check=True).stdout for name in COMMANDS}
    found = {name: re.findall(r"^  --([a-z-]+)", text, re.MULTILINE) for name, text in shown.items()}
    assert len(found["serve"]) > 60 and all(found.values())
    return found


@pytest.mark.parametrize("path, form", [
    ("man/man1/quire.1", r"^.TP\n\\fB\\-\\-{}\\fR"), ("bash-completion/completions/quire", r"[' ]--{}[' ]"),
    ("zsh/site-functions/_quire", r"^ *'--{}\["), ("fish/vendor_completions.d/quire.fish", r" -l {} ")])
def test_the_manual_and_each_completion_have_every_option(tree, helps, path, form):
    text = (tree / "share" / path).read_text()
    for command, options in helps.items():
        assert re.search(rf"\b{command}\b", text), command
        for option in options:
            name = option.replace("-", r"\\-") if path.endswith(".1") else option
            assert re.search(form.format(name), text, re.MULTILINE), (command, option)
    assert not re.search(form.format("no-such-option"), text, re.MULTILINE)


@pytest.mark.parametrize("words, completed", [
    (["qua"], ["quantize"]), (["serve", "--max-num-s"], ["--max-num-seqs"]), (["info", "--js"], ["--json"]),
    (["serve", "--device", ""], ["auto", "cpu", "cuda"]), (["quantize", "--group"], ["--group-size"]),
    (["version", "--"], []), (["serve", "--port", ""], []), (["serve", "--no-u"], ["--no-ui"])])
def test_bash_completes(tree, words, completed):
    script = f"""source '{tree}/share/bash-completion/completions/quire'
        COMP_WORDS=(quire "$@") COMP_CWORD=$#; _quire; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == completed and not done.stderr


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
    done = subprocess.run([ROOT / "scripts/package", "tarball", "--build", pathlib.Path(BINARY).parent], check=True,
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


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory):
    """A wheel without the model, which is most of its bytes."""
    root = tmp_path_factory.mktemp("wheel")
    (root / "tree/bin").mkdir(parents=True)
    shutil.copy(tree / "bin/quire", root / "tree/bin")
    shutil.copytree(tree / "share/quire", root / "tree/share/quire", ignore=shutil.ignore_patterns("models"))
    done = subprocess.run([sys.executable, ROOT / "scripts/packaging/make_wheel.py", root / "tree", "--version", "1.2.3",
                           "--out", root], check=True, capture_output=True, text=True,
                          env={**os.environ, "SOURCE_DATE_EPOCH": "1000000000"})
    return pathlib.Path(done.stdout.strip())


def test_a_wheels_record_is_right(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        rows = list(csv.reader(archive.read("quire_server-1.2.3.dist-info/RECORD").decode().splitlines()))
        assert [row[0] for row in rows] == names and rows[-1] == [names[-1], "", ""]
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert digest == "sha256=" + expected and int(size) == len(data), name
        tag = re.fullmatch(r"quire_server-1\.2\.3-(py3-none-manylinux_2_\d+_\w+)\.whl", wheel.name)[1]
        assert f"Tag: {tag}\n" in archive.read("quire_server-1.2.3.dist-info/WHEEL").decode()
        licences = "quire_server-1.2.3.dist-info/licenses"
        general = {name.rsplit("/", 1)[1] for name in names if f"{licences}/common-licenses/" in name}
        assert {"LGPL-2.1", "GPL-2", "Apache-2.0"} <= general
        of_others = archive.read(f"{licences}/THIRD_PARTY_NOTICES.txt").decode()
        assert "picojson" in of_others and "Apache License" in archive.read(f"{licences}/LICENSE").decode()
        listed = dict(line.split() for line in archive.read(f"{licences}/PACKAGES").decode().split("\n\n")[1].splitlines())
        assert all(f"{licences}/{name}" in names and re.match(r"[\d.:]+", version) for name, version in listed.items())
        assert len(listed) > 20
        assert {info.date_time for info in archive.infolist()} == {(2001, 9, 9, 1, 46, 40)}


def test_a_cross_built_wheel_names_the_packages_of_its_libraries(tmp_path):
    """A library's name says little of its package's."""
    spec = importlib.util.spec_from_file_location("make_wheel", ROOT / "scripts/packaging/make_wheel.py")
    make_wheel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_wheel)
    name, owner = "usr/lib/aarch64-linux-gnu/libgssapi_krb5.so.2", ("libgssapi-krb5-2", "1.20.1-2")
    documents = tmp_path / "usr/share/doc" / owner[0]
    documents.mkdir(parents=True)
    (documents / "copyright").write_text("see /usr/share/common-licenses/GPL-2.")
    (tmp_path / "owners").write_text(f"{name} {' '.join(owner)}\n")
    found, text = make_wheel.licence_of(tmp_path / name, tmp_path)
    assert found == owner and b"GPL-2" in text
    assert {*make_wheel.general_licences([text])} == {"GPL-2"}


def test_a_wheels_program_takes_its_own_libraries(wheel, tmp_path):
    """All but those that every manylinux system has."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        for info in archive.infolist():
            (tmp_path / info.filename).chmod(info.external_attr >> 16)
    done = subprocess.run([sys.executable, "-m", "quire_server", "version"], cwd=tmp_path, capture_output=True, text=True,
                          check=True)
    assert done.stdout.startswith("quire ")
    loaded = subprocess.run(["ldd", tmp_path / "quire_server/bin/quire"], capture_output=True, text=True, check=True)
    foreign = set(re.findall(r"(lib\w\S*) => (?!\S*quire_server/bin/../lib/)", loaded.stdout))
    assert {name.split(".so")[0] for name in foreign} <= {"libc", "libm", "libgcc_s", "libstdc++", "libpthread",
                                                          "libresolv", "libdl", "librt"}


GAPS = {"xgrammar": "grammar", "libcurl": "hub", "ZeroMQ": "kv_events", "CUDA": "cuda"}


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
        called = (tmp_path / "called").read_text().splitlines()
        return [line for line in called if line != "meson --version"], done.stderr

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
