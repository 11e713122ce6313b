"""scripts/fetch_model with a hub of directories in place of the network: what it asks the client
for, and what it says."""
import inspect
import json
import os
import shutil
import subprocess
import sys

import huggingface_hub
import pytest

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
        shutil.copy(ROOT / "scripts/fetch_model", path / "scripts")
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
            env={**os.environ, "PYTHONPATH": str(self.path / "client"),
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
