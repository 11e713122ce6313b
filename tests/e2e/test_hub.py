"""Models by their names, from a hub on the loopback: what comes, what is refused, and that a broken
transfer never leaves half a file, nor a token in a log."""
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

import gguf_file
from loopback_hub import COMMIT, Fault, Hub, Proxy, Repository
from server import BINARY, LONG, MODEL, PATIENCE, ROOT, WRAPPER, Server
from tls_server import make_certificate

sys.path.insert(0, str(ROOT / "scripts/fixtures"))
import checkpoint  # noqa: E402  reads and writes weights

NAME = "some-org/a.model"
FOLDER = "models--some-org--a.model"
SMALL = ["config.json", "tokenizer.json"]
CUTS = 200


@pytest.fixture(scope="module")
def the_hub():
    with Hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def files(tiny_model):
    """The files of a model, and others that are not read."""
    found = {path.name: path.read_bytes() for path in tiny_model.iterdir() if path.is_file()}
    return {**found, "README.md": b"#", "pytorch_model.bin": b"\x80pickle", "modeling_x.py": b"raise"}


@pytest.fixture(scope="module")
def gguf(tiny_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return gguf_file.write_gguf(tiny_model, path, pre="llama-bpe").read_bytes()


class Home:
    """A user's cache, and commands that run with it."""

    def __init__(self, hub, path):
        self.hub, self.path = hub, path
        self.cache = path / "hub"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("QUIRE_", "HF_", "HUGGING")) and
                 k != "SSL_CERT_FILE" and not k.lower().endswith(("_proxy", "_ca_bundle"))}
        self.env = {**clean, "HF_HOME": str(path), "HF_ENDPOINT": hub.address, "no_proxy": "*"}

    def start(self, *arguments, **options):
        return subprocess.Popen([*WRAPPER, BINARY, *map(str, arguments)], env=self.env, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, **options)

    def run(self, *arguments, status=0, **options):
        process = self.start(*arguments, **options)
        out, said = process.communicate(timeout=60 * PATIENCE)
        assert process.returncode == status, said
        assert self.hub.token not in said + out
        return out if status == 0 else said

    def refusal(self, *arguments, **options):
        said = self.run(*arguments, status=1, **options)
        return said.strip().split("\n")[-1]

    def check_whole(self, files, commit=COMMIT):
        """Every link leads to a whole file of the right bytes, and only blobs have names of hashes."""
        snapshot = self.cache / FOLDER / "snapshots" / commit
        for path in snapshot.rglob("*"):
            if not path.is_dir():
                name = str(path.relative_to(snapshot))
                assert path.is_symlink() and not os.readlink(path).startswith("/")
                assert path.read_bytes() == files[name], name
        for blob in (self.cache / FOLDER / "blobs").iterdir():
            if blob.suffix != ".incomplete":
                content = blob.read_bytes()
                assert blob.name in (hashlib.sha256(content).hexdigest(),
                                     hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest())
        return sorted(str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if not p.is_dir())


@pytest.fixture
def home(the_hub, files, tmp_path):
    the_hub.reset()
    the_hub.repositories[NAME] = Repository(dict(files))
    return Home(the_hub, tmp_path)


# ---- what comes ----

def test_a_model_is_served_by_its_name_and_keeps_it(home, files, tmp_path):
    with Server(tmp_path, model=NAME, env=home.env) as server:
        assert server.get("/v1/models").json()["data"][0]["id"] == NAME
        body = {"model": NAME, "prompt": "a", "max_tokens": 1}
        assert server.post("/v1/completions", body).status == 200
        assert "licence: apache-2.0" in server.log
    got = home.check_whole(files)
    assert {*SMALL, "model.safetensors"} <= set(got)
    assert not {"README.md", "pytorch_model.bin", "modeling_x.py"} & set(got)
    assert (home.cache / FOLDER / "refs/main").read_text() == COMMIT
    before = len(home.hub.asked)
    assert home.run("pull", NAME).strip() == str(home.cache / FOLDER / "snapshots" / COMMIT)
    assert len(home.hub.asked) == before + 1  # the list of files: nothing else has changed
    for command in ("info", "tokenize"):
        assert home.run(command, NAME, "--offline")


def test_small_files_come_first_and_decide(home, files):
    config = json.loads(files["config.json"])
    home.hub.repositories[NAME].files["config.json"] = json.dumps(
        {**config, "architectures": ["MambaForCausalLM"]}).encode()
    said = home.refusal("pull", NAME)
    assert f"quire cannot serve {NAME}: architecture 'MambaForCausalLM' is not supported" in said
    assert not [path for path in home.hub.paths("other") if path.endswith(".safetensors")]


def test_the_headers_of_weights_decide_before_the_weights_come(home, files):
    """The sizes that config.json says are not those of the file."""
    config = json.loads(files["config.json"])
    home.hub.repositories[NAME].files |= {
        "config.json": json.dumps({**config, "num_hidden_layers": config["num_hidden_layers"] + 1}).encode(),
        "model.safetensors": files["model.safetensors"] + bytes(64 << 20)}
    stale, fresh = (home.cache / FOLDER / f"quire-check-{name}" / "below" for name in ("stale", "fresh"))
    for left in (stale, fresh):
        left.mkdir(parents=True)
    os.utime(stale.parent, (0, 0))
    home.env["TMPDIR"] = "/nowhere"  # only the cache can be written
    said = home.refusal("pull", NAME)
    assert f"quire cannot serve {NAME}: " in said and "quire-check" not in said
    assert [path.name for path in (home.cache / FOLDER).glob("quire-check-*")] == [fresh.parent.name]
    assert sum(p.stat().st_size for p in (home.cache / FOLDER / "blobs").iterdir()) < 32 << 20


def test_a_gguf_file_is_chosen_by_its_format(home, gguf, tmp_path):
    names = ["m-Q4_K_M.gguf", "m-IQ4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf"]
    home.hub.repositories[NAME] = Repository({name: gguf for name in names})
    said = home.refusal("pull", NAME)
    assert "has 3 GGUF files: name one" in said and "m-Q8_0.gguf" in said and "mmproj" not in said
    assert "no GGUF file for 'Q5_0'; it has m-Q4_K_M.gguf, " in home.refusal("pull", f"hf:{NAME}:Q5_0")
    with Server(tmp_path, model=f"hf:{NAME}:q4_k_m", env=home.env) as server:
        assert server.get("/v1/models").json()["data"][0]["id"] == NAME
    snapshot = home.cache / FOLDER / "snapshots" / COMMIT
    assert [path.name for path in snapshot.iterdir()] == ["m-Q4_K_M.gguf"]
    assert home.run("info", f"hf:{NAME}:m-Q4_K_M.gguf", "--offline")
    assert "not whole" in home.refusal("info", f"hf:{NAME}:Q8_0", "--offline")


def test_a_split_comes_whole(home, tiny_model, tmp_path):
    gguf_file.write_gguf(tiny_model, tmp_path / "m.gguf", pre="llama-bpe", n_files=3)
    split = {f"Q8_0/{path.name}": path.read_bytes() for path in tmp_path.glob("*.gguf")}
    home.hub.repositories[NAME] = Repository(dict(split))
    path = pathlib.Path(home.run("pull", f"{NAME}:m").strip())
    assert path.name == "m-00001-of-00003.gguf"
    assert home.check_whole(split) == sorted(split)
    del home.hub.repositories[NAME].files["Q8_0/m-00002-of-00003.gguf"]
    assert "has no Q8_0/m-00002-of-00003.gguf" in home.refusal("pull", NAME)


def test_a_dry_run_fetches_nothing(home, files):
    process = home.start("pull", NAME, "--dry-run")
    out, said = process.communicate(timeout=60)
    assert process.returncode == 0 and out == ""
    assert f"  model.safetensors {len(files['model.safetensors'])}" in said
    assert not list((home.cache / FOLDER).rglob("*.incomplete")) and "pickle" not in said


# ---- what is looked at ----

MB = 1 << 20
FIRST = {".safetensors": 4 * MB, ".gguf": 32 * MB}  # of a file; of the further ones of a split 4 MB


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The default model in each form; its weights are longer than what is looked at."""
    folder, found = tmp_path_factory.mktemp("large"), {}
    small = {name: (MODEL / name).read_bytes() for name in
             ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")}
    found["file"] = {**small, "model.safetensors": (MODEL / "model.safetensors").read_bytes()}
    tensors = checkpoint.read_tensors(MODEL)
    shards = {f"model-0000{i + 1}-of-00002.safetensors": sorted(tensors)[i::2] for i in range(2)}
    for name, part in shards.items():
        checkpoint.write_tensors(folder / name, {key: tensors[key] for key in part})
    index = {"weight_map": {key: name for name, part in shards.items() for key in part}}
    found["shards"] = {**small, "model.safetensors.index.json": json.dumps(index).encode(),
                       **{name: (folder / name).read_bytes() for name in shards}}
    found["gguf"] = {"m.gguf": gguf_file.write_gguf(MODEL, folder / "m.gguf").read_bytes()}
    gguf_file.write_gguf(MODEL, folder / "s.gguf", n_files=2)
    found["split"] = {path.name: path.read_bytes() for path in folder.glob("s-*.gguf")}
    return found


def look(home, *arguments):
    """What info prints, what it says of the hub, and the last byte asked for of each file."""
    home.hub.asked.clear()
    process = home.start("info", *arguments)
    out, said = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 0, said
    lines = [re.sub(r"^\d{4}-\S+ ", "", line) for line in said.split("\n") if line]
    assert len(lines) == len(set(lines)), said  # such as the device's, which the check creates, too
    assert not list(home.cache.rglob("quire-check-*")) and "quire-check" not in out + said
    ends = {}
    for asked in home.hub.asked:
        if asked.host == "other":
            ends[asked.path.split("/")[-1]] = int(re.fullmatch(r"bytes=\d+-(\d+)", asked.headers["Range"])[1]) + 1
    return out, [line for line in said.split("\n") if line.startswith("quire: ")], ends


@pytest.mark.parametrize("form", ["file", "shards", "gguf", "split"])
def test_a_model_is_looked_at_before_its_weights_come(home, large, form):
    """What is printed is what is printed once they are there, of no more than their first bytes."""
    content = large[form]
    home.hub.repositories[NAME] = Repository(dict(content))
    weights = sorted(name for name in content if name.endswith((".safetensors", ".gguf")))
    first = {name: min(len(content[name]), FIRST[".gguf" if name.endswith(".gguf") and i == 0 else ".safetensors"])
             for i, name in enumerate(weights)}
    fetched = sum(first.get(name, len(content[name])) for name in content)
    left = sum(len(content[name]) - first[name] for name in weights)
    assert left > 20 * MB
    out, said, ends = look(home, NAME)
    assert ends == first
    assert said[-1] == (
        f"quire: {fetched / 1e6:.1f} MB of {NAME} were fetched to look at it, and its weights were not: "
        f"{left / 1e9:.2f} GB are left for `quire pull`")
    assert said[0].endswith(f", of which {fetched / 1e9:.2f} GB are to come")
    assert look(home, NAME)[::2] == (out, {})  # what has come is enough
    as_json = json.loads(look(home, NAME, "--json", "--max-model-len", "1024")[0])
    too_long = home.refusal("info", NAME, "--max-model-len", "1M")
    assert "--max-model-len is 1048576, but the model's context is" in too_long
    assert "has no whole" in home.refusal("info", NAME, "--offline") and "not whole" in home.run("list")
    path = home.run("pull", NAME).strip()
    assert f"\nfiles          {path}\n" in out
    again, said, ends = look(home, NAME)
    assert (again, said, ends) == (out, [], {})
    assert json.loads(home.run("info", NAME, "--json", "--max-model-len", "1024")) == as_json
    assert home.refusal("info", NAME, "--max-model-len", "1M") == too_long


def test_weights_never_come_for_a_look(home, large):
    """Neither where the small files are there, nor of a newer revision, nor on a disk without space."""
    home.hub.repositories[NAME] = Repository(dict(large["file"]))
    home.run("tokenize", NAME)
    assert look(home, NAME)[2] == {"model.safetensors": FIRST[".safetensors"]}
    home.run("pull", NAME)
    newer = {**large["file"], **large["shards"]}
    del newer["model.safetensors"]
    home.hub.repositories[NAME] = Repository(newer, commit="f" * 40)
    out, said, ends = look(home, NAME)
    assert "f" * 40 in out and "its weights were not" in said[-1] and set(ends.values()) == {FIRST[".safetensors"]}
    assert (home.cache / FOLDER / "refs/main").read_text() == COMMIT
    assert COMMIT in home.run("info", NAME, "--offline")
    home.run("rm", NAME, "--yes")
    assert not (home.cache / FOLDER).exists()
    listed = {"sha": COMMIT, "siblings": [*Repository(large["gguf"]).siblings()]}
    listed["siblings"][0]["lfs"]["size"] = listed["siblings"][0]["size"] = 1 << 42
    home.hub.repositories[NAME], home.hub.listed = Repository(dict(large["gguf"])), listed
    assert "GB more, and the disk of" in home.refusal("pull", NAME)
    assert "4398.01 GB are left" in look(home, NAME)[1][-1]


def test_what_is_looked_at_is_refused_as_what_is_pulled(home, files):
    config = json.loads(files["config.json"])
    home.hub.repositories[NAME].files["config.json"] = json.dumps(
        {**config, "architectures": ["MambaForCausalLM"]}).encode()
    home.hub.repositories["some-org/gated"] = Repository(dict(files), gated=True)
    home.hub.repositories["some-org/pickles"] = Repository({"config.json": b"{}", "pytorch_model.bin": b"\x80"})
    for name in (NAME, "some-org/gated", "some-org/pickles", "some-org/none"):
        assert home.refusal("info", name) == home.refusal("pull", name)
    assert not home.hub.paths("other") and not list(home.cache.rglob("quire-check-*"))


# ---- transfers that break ----

def test_a_transfer_that_is_cut_goes_on(home, files):
    rng = random.Random(69)
    size = len(files["model.safetensors"])
    weights = home.hub.repositories[NAME]
    home.hub.faults.extend(Fault(".safetensors", cut=rng.randrange(1, 2 * size // CUTS)) for _ in range(CUTS))
    home.run("pull", NAME)
    assert "model.safetensors" in home.check_whole(files)
    ranges = [asked.headers.get("Range") for asked in home.hub.asked if asked.host == "other"]
    assert len(ranges) > CUTS // 2 and all(ranges) and len(set(ranges)) > CUTS // 2
    assert weights.hash_of("model.safetensors") in os.listdir(home.cache / FOLDER / "blobs")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_ends_leaves_a_part_that_the_next_one_takes(home, files, how):
    size = len(files["model.safetensors"])
    fault = Fault(".safetensors", cut=size // 2, hold=True)
    home.hub.faults.append(fault)
    process = home.start("pull", NAME)
    assert fault.hold.wait(30 * PATIENCE)
    blobs = home.cache / FOLDER / "blobs"
    while not any(p.stat().st_size >= size // 4 for p in blobs.glob("*.incomplete")):
        time.sleep(0.01)
    process.send_signal(how)
    _, said = process.communicate(timeout=30 * PATIENCE)
    fault.go.set()
    assert process.returncode in (-how, 128 + how)
    assert how == signal.SIGKILL or "interrupted; run it again to go on" in said
    assert "model.safetensors" not in home.check_whole(files)
    assert "not whole" in home.run("list")
    home.hub.asked.clear()
    home.run("pull", NAME)
    assert "model.safetensors" in home.check_whole(files)
    first = next(asked.headers["Range"] for asked in home.hub.asked if asked.host == "other")
    assert int(first.split("=")[1].split("-")[0]) >= size // 4


def test_a_server_without_ranges_begins_anew(home, files):
    home.hub.ranges = False
    home.hub.faults.append(Fault(".safetensors", cut=1000))
    home.run("pull", NAME)
    assert "model.safetensors" in home.check_whole(files)


def test_the_hub_may_ask_to_wait(home, files):
    now = {"Retry-After": "0"}
    home.hub.faults.extend([Fault("main", status=429, headers=now), Fault("config.json", status=503, headers=now),
                            Fault("config.json", status=429, headers=now)])
    home.run("pull", NAME)
    assert "config.json" in home.check_whole(files)
    home.hub.faults.extend(Fault("main", status=429, headers=now) for _ in range(3))
    shutil.rmtree(home.cache)
    assert "refuses more requests now (429): try again later" in home.refusal("pull", NAME)


@pytest.mark.parametrize("headers, seconds", [
    ({"RateLimit": '"api";r=0;t=1'}, 2), ({"RateLimit": '"resolvers"; r=7; t=290'}, 1),
    ({"RateLimit": "r=t=0", "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}, 1),
    ({"Retry-After": "2", "RateLimit": '"api";r=0;t=290'}, 2)])
def test_a_limit_of_requests_says_when_it_ends(home, headers, seconds):
    """The hub's 429 has no Retry-After, but what is left of its window; a second more is safe."""
    home.hub.faults.append(Fault("main", status=429, headers=headers))
    process = home.start("pull", NAME, "--dry-run")
    _, said = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 0 and f"the hub answers 429: again in {seconds} s" in said


def test_a_file_that_is_shorter_than_listed_is_said(home, files):
    """A mirror without LFS has the pointer in place of the file; a portal has a page."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
    for page in (pointer, b"<html>"):
        home.hub.faults.clear()
        home.hub.faults.extend(Fault(".safetensors", change=lambda _, page=page: page) for _ in range(20))
        said = home.refusal("pull", NAME)
        assert f"model.safetensors ends after {len(page)} of {len(files['model.safetensors'])} bytes" in said
        assert ("a Git LFS pointer" in said) == (page is pointer)
    home.hub.faults.clear()
    home.run("pull", NAME)
    assert "model.safetensors" in home.check_whole(files)


def test_a_mirror_that_tells_nothing_of_a_file_is_enough(home, files):
    """Neither ETag nor commit: hash and size are those of the list."""
    home.hub.tells = False
    home.run("pull", NAME)
    assert "model.safetensors" in home.check_whole(files)


def test_a_renamed_repository_is_followed(home, files):
    """The hub redirects without naming its host, so the token goes along."""
    home.hub.moved["former-org/name"] = NAME
    home.hub.repositories[NAME].private = True
    home.env["HF_TOKEN"] = home.hub.token
    assert "models--former-org--name" in home.run("pull", "former-org/name")
    assert home.run("info", "former-org/name", "--offline")


def test_a_wrong_hash_is_thrown_away(home, files):
    """Once it comes again; twice it is an error, and nothing of it is kept."""
    def flip(content):
        return content[:-1] + bytes([content[-1] ^ 1])
    home.hub.faults.extend([Fault(".safetensors", change=flip), Fault("tokenizer.json", change=flip)])
    home.run("pull", NAME)
    assert {"model.safetensors", "tokenizer.json"} <= set(home.check_whole(files))
    shutil.rmtree(home.cache)
    home.hub.faults.extend(Fault(".safetensors", change=flip) for _ in range(2))
    assert "model.safetensors comes with another hash" in home.refusal("pull", NAME)
    assert "model.safetensors" not in home.check_whole(files)
    assert not list((home.cache / FOLDER / "blobs").glob("*.incomplete"))
    home.hub.faults.append(Fault(".safetensors", change=lambda content: content + b"more"))
    home.run("pull", NAME)


def test_a_full_disk_keeps_what_has_come(home, files):
    size = len(files["model.safetensors"])

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1000, size - 1000))
    said = home.refusal("pull", NAME, preexec_fn=limit)
    assert "is full, or its limit is reached" in said and "what has come is kept" in said
    assert "model.safetensors" not in home.check_whole(files)
    home.run("pull", NAME)
    assert "model.safetensors" in home.check_whole(files)


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a file system of a number of bytes, and says where.  Called again it has another size."""
    place, mounted = tmp_path / "disk", []

    def mount(n_bytes):
        place.mkdir(exist_ok=True)
        options = f"size={n_bytes}" + (",remount" if mounted else "")
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=False,
                          capture_output=True).returncode:
            pytest.skip("no tmpfs can be mounted here: it takes root, and a root that is mounted")
        mounted.append(place)
        return place
    yield mount
    if mounted:
        subprocess.run(["umount", place], check=True)


def test_a_disk_that_is_full_serves_no_half_file(home, files, small_disk):
    """The disk is too small from the beginning; then something else fills it during the transfer."""
    size = len(files["model.safetensors"])
    room = sum(len(content) for content in files.values()) + (256 << 10)
    small = small_disk(room - size // 2)
    full = Home(home.hub, small)
    full.env["HF_TOKEN"] = home.hub.token  # which no line shows
    assert "GB more, and the disk of" in full.refusal("pull", NAME)
    assert "is not" in full.refusal("info", NAME, "--offline")
    small_disk(room)
    fault = Fault(".safetensors", cut=size // 4, hold=True)
    home.hub.faults.append(fault)
    process = full.start("pull", NAME)
    assert fault.hold.wait(30 * PATIENCE)
    with pytest.raises(OSError), open(small / "other", "wb", buffering=0) as other:
        while other.write(bytes(4096)):
            pass
    fault.go.set()
    out, said = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 1 and home.hub.token not in said + out
    assert "is full, or its limit is reached" in said and "what has come is kept" in said
    assert "model.safetensors" not in full.check_whole(files)
    assert "has no whole" in full.refusal("info", NAME, "--offline")
    (small / "other").unlink()
    full.run("pull", NAME)
    assert "model.safetensors" in full.check_whole(files)


def test_whenever_processes_end_nothing_is_half(home, files):
    """Two at once, with faults of all kinds, of which one is killed at a random moment."""
    rng = random.Random(6)
    size = len(files["model.safetensors"])

    def flip(content):
        return content[:-1] + bytes([content[-1] ^ 1])
    home.env["HF_TOKEN"] = home.hub.token
    for _ in range(100 if LONG else 8):
        home.hub.faults.clear()
        home.hub.faults.extend(rng.choice([
            Fault(".safetensors", cut=rng.randrange(1, size)), Fault(".safetensors", change=flip),
            Fault("tokenizer.json", change=flip), Fault("config.json", status=503, headers={"Retry-After": "0"}),
        ]) for _ in range(4))
        both = [home.start("pull", NAME) for _ in range(2)]
        time.sleep(rng.random() * 0.2 * PATIENCE)
        both[0].kill()
        said = "".join("".join(process.communicate(timeout=60 * PATIENCE)) for process in both)
        assert home.hub.token not in said
        if (home.cache / FOLDER / "snapshots" / COMMIT).exists():
            got = home.check_whole(files)
            if "model.safetensors" in got:
                assert home.run("info", NAME, "--offline")
                home.run("rm", NAME, "--yes")
    home.hub.faults.clear()
    home.run("pull", NAME)
    assert "model.safetensors" in home.check_whole(files)


def test_two_processes_fetch_a_file_once(home, files):
    fault = Fault(".safetensors", cut=len(files["model.safetensors"]) // 2, hold=True)
    home.hub.faults.append(fault)
    first = home.start("pull", NAME)
    assert fault.hold.wait(30 * PATIENCE)
    second = home.start("pull", NAME)
    lines = []
    waiting = threading.Event()

    def read():
        for line in second.stderr:
            lines.append(line)
            if "another process fetches" in line:
                waiting.set()
    reader = threading.Thread(target=read)
    reader.start()
    assert waiting.wait(30 * PATIENCE), lines
    fault.go.set()
    assert first.wait(30 * PATIENCE) == 0 and second.wait(30 * PATIENCE) == 0
    reader.join()
    assert "model.safetensors" in home.check_whole(files)
    starts = [asked for asked in home.hub.asked if asked.host == "other" and
              asked.headers["Range"].startswith("bytes=0-")]
    assert len(starts) == 1


# ---- the token ----

def test_the_token_goes_to_the_hub_alone(home, files, tmp_path):
    home.hub.repositories[NAME].private = True
    assert "the hub has no some-org/a.model, or it is private" in home.refusal("pull", NAME)
    (home.path / "token").write_text(home.hub.token + "\n")
    home.hub.asked.clear()
    with Server(tmp_path, "--log-level", "debug", model=NAME, env=home.env) as server:
        server.wait_logged("listening on")
        assert home.hub.token not in server.log
    assert {asked.headers.get("Authorization") for asked in home.hub.asked if asked.host == "hub"} == {
        f"Bearer {home.hub.token}"}
    assert [a for a in home.hub.asked if a.host == "other"]
    assert not [a for a in home.hub.asked if a.host == "other" and "Authorization" in a.headers]


def test_a_token_without_tls_stays_on_this_machine(home):
    """A proxy gets neither a request with it, nor one for a host that only looks like the loopback."""
    home.env |= {"HF_TOKEN": home.hub.token, "http_proxy": "http://127.0.0.1:9"}
    del home.env["no_proxy"]
    home.run("pull", NAME, "--dry-run")
    home.hub.asked.clear()
    home.env |= {"HF_ENDPOINT": "http://127.example.net", "http_proxy": home.hub.address}
    home.refusal("pull", NAME, "--dry-run")
    assert home.hub.asked and not [a for a in home.hub.asked if "Authorization" in a.headers]


@pytest.mark.parametrize("token", [None, "hf_of_another"])
def test_a_gated_model_says_what_to_do(home, token):
    home.hub.repositories[NAME].gated = "auto"
    if token:
        home.env["HF_TOKEN"] = token
    said = home.refusal("pull", NAME)
    assert f"{NAME} is gated: accept its licence on its page, {home.hub.address}/{NAME}" in said
    assert not token or token not in said
    home.env["HF_TOKEN"] = home.hub.token
    home.run("pull", NAME)


@pytest.mark.parametrize("status, message, words", [
    (401, "Invalid credentials in Authorization header", "the hub does not know the token"),
    (403, "Access to this resource is disabled.", f"the hub has disabled {NAME}")])
def test_a_reason_of_the_hub_is_said(home, status, message, words):
    """A token that is out of date is refused for models that anyone may read, too."""
    home.env["HF_TOKEN"] = home.hub.token
    home.hub.faults.append(Fault("main", status=status, headers={"X-Error-Message": message}))
    assert words in home.refusal("pull", NAME)


# ---- proxies and certificates ----

@pytest.fixture(scope="module")
def tls_hub(tmp_path_factory):
    """A hub behind TLS with names that only a proxy knows, and its certificate."""
    names = ["hub.example", "other.example"]
    certificate, key = make_certificate(tmp_path_factory.mktemp("tls"), "hub", names)
    with Hub((certificate, key), names) as hub:
        hub.certificate = certificate
        yield hub


@pytest.fixture
def behind_proxy(tls_hub, files, tmp_path):
    tls_hub.reset()
    tls_hub.repositories[NAME] = Repository(dict(files), private=True)
    home = Home(tls_hub, tmp_path)
    del home.env["no_proxy"]
    home.env["HF_TOKEN"] = tls_hub.token
    return home


@pytest.mark.parametrize("authorities, variable", [
    ("SSL_CERT_FILE", "https_proxy"), ("REQUESTS_CA_BUNDLE", "HTTPS_PROXY"), ("CURL_CA_BUNDLE", "all_proxy")])
def test_a_proxy_passes_on_what_it_cannot_read(behind_proxy, files, authorities, variable):
    home = behind_proxy
    with Proxy("Basic dXNlcjpwYXNzd29yZC1vZi1hLXByb3h5") as proxy:
        address = f"http://user:password-of-a-proxy@127.0.0.1:{proxy.server_port}"
        home.env |= {variable: address, authorities: str(home.hub.certificate)}
        home.run("pull", NAME)
        assert "model.safetensors" in home.check_whole(files)
        assert {asked.host.split(":")[0] for asked in proxy.asked} == {"hub.example", "other.example"}
        assert {asked.path for asked in proxy.asked} == {"CONNECT"}
        assert not [asked for asked in proxy.asked if home.hub.token in str(asked)]
    tokens = {(asked.host, asked.headers.get("Authorization")) for asked in home.hub.asked}
    assert tokens == {("hub", f"Bearer {home.hub.token}"), ("other", None)}


@pytest.mark.parametrize("word", ["Basic other", None])
def test_a_proxy_that_refuses_is_said_without_its_password(behind_proxy, word):
    home = behind_proxy
    with Proxy(word) as proxy:
        address = f"http://user:password-of-a-proxy@127.0.0.1:{proxy.server_port if word else 9}"
        home.env |= {"https_proxy": address, "SSL_CERT_FILE": str(home.hub.certificate)}
        said = home.run("pull", NAME, status=1)
    assert f"{home.hub.address} cannot be reached" in said and "https_proxy" in said
    assert "password-of-a-proxy" not in said and not home.hub.asked


def test_a_proxy_without_tls_gets_no_token(home, files):
    """A mirror in plain HTTP, which only the proxy knows."""
    with Proxy() as proxy:
        home.env |= {"http_proxy": f"http://127.0.0.1:{proxy.server_port}", "HF_TOKEN": home.hub.token,
                     "HF_ENDPOINT": home.hub.address.replace("127.0.0.1", "hub.example")}
        del home.env["no_proxy"]
        home.run("pull", NAME)
        assert len(proxy.asked) > 3 and home.hub.token not in str(proxy.asked + home.hub.asked)
    assert "model.safetensors" in home.check_whole(files)


@pytest.mark.parametrize("place", [None, "ca-bundle.pem"])
def test_authorities_are_found_where_other_systems_have_them(behind_proxy, place, tmp_path):
    """Debian's place is hidden; the other is openSUSE's."""
    home = behind_proxy
    shutil.copy(home.hub.certificate, tmp_path / "certificate")
    put = f"cp {tmp_path}/certificate /etc/ssl/{place}" if place else "true"
    hide = "mount -t tmpfs tmpfs /etc/ssl && mkdir -p /etc/pki /etc/ssl && mount -t tmpfs tmpfs /etc/pki"
    with Proxy() as proxy:
        home.env["https_proxy"] = f"http://127.0.0.1:{proxy.server_port}"
        done = subprocess.run(["unshare", "--mount", "sh", "-c", f"({hide} && {put}) >&2 || exit 77; exec \"$@\"", "sh",
                               *WRAPPER, BINARY, "pull", NAME], env=home.env, text=True, capture_output=True,
                              timeout=60 * PATIENCE, check=False)
    if done.returncode == 77 or done.stderr.startswith("unshare: "):
        pytest.skip("no folder can be hidden here: it takes root")
    if place:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 1 and not home.hub.asked
    assert "has no authorities of certificates: install ca-certificates, or let SSL_CERT_FILE name" in done.stderr


# ---- what is refused ----

@pytest.mark.parametrize("name, words", [
    ("no-org/none", "the hub has no no-org/none, or it is private: check the name"),
    (f"{NAME}@v9", f"{NAME} has no revision v9"),
])
def test_what_the_hub_does_not_have_is_said(home, name, words):
    assert words in home.refusal("pull", name)
    assert not home.cache.exists()


@pytest.mark.parametrize("gone, words", [
    ("config.json", "has no config.json"), ("tokenizer.json", "has no tokenizer.json"),
    ("model.safetensors", "no weights in safetensors, only pickles (pytorch_model.bin)")])
def test_a_format_that_is_not_read_is_said_before_anything_comes(home, gone, words):
    del home.hub.repositories[NAME].files[gone]
    assert words in home.refusal("pull", NAME)
    assert len(home.hub.asked) == 1


@pytest.mark.parametrize("path", ["../x.safetensors", "/etc/config.json", "a//config.json", "a/./config.json",
                                  "..", "a\\..\\b", "x\nconfig.json"])
def test_a_path_that_could_leave_its_folder_is_refused(home, path):
    home.hub.repositories[NAME].files[path] = b"{}"
    assert "which could be outside of its folder" in home.refusal("pull", NAME)
    assert not home.cache.exists() and sorted(p.name for p in home.path.iterdir()) == []


def test_a_path_that_no_folder_could_have_is_left_out(home, files):
    """Others of the repository are read.  One of the most letters that a file's name can have is, too."""
    long, too_long = ("x" * n + ".gguf" for n in (250, 251))
    home.hub.repositories[NAME].files |= {"a/" * 200 + "config.json": b"{}", too_long: b"", "\U0001f600" * 64: b""}
    home.run("pull", NAME)
    assert home.check_whole(files)
    home.hub.repositories[NAME].files[long] = b"GGUF"
    said = home.refusal("pull", f"hf:{NAME}:{'x' * 250}.gguf")
    assert "quire cannot serve" in said


def test_links_in_the_cache_are_not_followed_out_of_it(home, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (home.cache / FOLDER).mkdir(parents=True)
    (home.cache / FOLDER / "blobs").symlink_to(outside)
    assert "blobs cannot be opened" in home.refusal("pull", NAME)
    assert not list(outside.iterdir())


def test_a_disk_without_space_is_said_before_anything_comes(home):
    listed = {"sha": COMMIT, "siblings": [*home.hub.repositories[NAME].siblings()]}
    for one in listed["siblings"]:
        if "lfs" in one:
            one["lfs"]["size"] = 1 << 48
    home.hub.listed = listed
    said = home.refusal("pull", NAME)
    assert "GB more, and the disk of" in said and "make space (`quire list`, `quire rm`)" in said
    assert len(home.hub.asked) == 1


# ---- without the network ----

def test_what_is_cached_is_served_without_the_network(home, files, tmp_path):
    said = home.refusal("info", NAME, "--offline")
    assert "is not in the hub's cache" in said and "--offline is given" in said
    home.run("pull", NAME)
    home.hub.asked.clear()
    home.env["HF_HUB_OFFLINE"] = "1"
    assert home.run("info", NAME) and not home.hub.asked
    assert "HF_HUB_OFFLINE is set" in home.refusal("pull", "some-org/other")
    home.env["HF_HUB_OFFLINE"] = "0"
    home.env["HF_ENDPOINT"] = "http://127.0.0.1:9"
    with Server(tmp_path, model=NAME, env=home.env) as server:
        assert f"what the cache has of {NAME} is used" in server.log
    assert home.run("info", f"{NAME}@{COMMIT}")
    (home.cache / FOLDER / "snapshots" / COMMIT / "model.safetensors").unlink()
    said = home.refusal("info", NAME, "--offline")
    assert "is not whole" in said and "no weights that are read" in said
    assert home.run("tokenize", NAME, "--offline")  # it needs no weights


def test_a_newer_revision_that_is_not_served_leaves_the_former_one(home, files):
    """The update fails by its configuration, and by its transfer."""
    home.run("pull", NAME)
    config = json.loads(files["config.json"])
    newer = {**files, "config.json": json.dumps({**config, "architectures": ["MambaForCausalLM"]}).encode()}
    home.hub.repositories[NAME] = Repository(newer, commit="f" * 40)
    assert "'MambaForCausalLM' is not supported" in home.refusal("pull", NAME)
    process = home.start("info", NAME)
    out, said = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 0 and COMMIT in out, said
    assert "'MambaForCausalLM' is not supported" in said and f"what the cache has of {NAME} is used" in said
    home.hub.repositories[NAME].files["config.json"] = files["config.json"] + b"\n"
    home.hub.faults.extend([Fault("config.json", status=403)] * 2)
    assert COMMIT in home.run("info", NAME)
    assert (home.cache / FOLDER / "refs/main").read_text() == COMMIT
    assert home.refusal("pull", NAME)


def test_a_cache_that_cannot_be_written_is_served(home, files, small_disk):
    """What it has whole is; what is newer, or not there, is said."""
    cache = small_disk(8 * sum(len(content) for content in files.values()))
    whole = Home(home.hub, cache)
    whole.run("pull", NAME)
    subprocess.run(["mount", "-o", "remount,ro", cache], check=True)
    for command in ("info", "pull"):
        assert whole.run(command, NAME)
    home.hub.repositories[NAME] = Repository({**files, "config.json": files["config.json"] + b"\n"}, commit="f" * 40)
    process = whole.start("info", NAME)
    out, said = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 0 and COMMIT in out and f"what the cache has of {NAME} is used" in said
    home.hub.repositories["some-org/other"] = Repository(dict(files))
    process = whole.start("pull", "some-org/other", "--dry-run")
    assert process.communicate(timeout=60 * PATIENCE) and process.returncode == 0
    for name in (NAME, "some-org/other"):
        said = whole.refusal("pull", name)
        assert "Read-only file system; HF_HOME can name another folder" in said
    subprocess.run(["mount", "-o", "remount,rw", cache], check=True)


def test_a_users_folder_is_meant_by_a_tilde(home):
    """Files of settings have it where no shell takes it away."""
    home.env |= {"HOME": str(home.path), "HF_HOME": "~/hub home"}
    path = home.run("pull", NAME).strip()
    assert path.startswith(f"{home.path}/hub home/hub/models--")
    home.env["HF_HUB_CACHE"] = "~"
    assert home.run("pull", NAME).startswith(f"{home.path}/models--")


# ---- the cache ----

def test_revisions_are_listed_and_removed(home, files):
    later = "f" * 40
    home.run("pull", NAME)
    config = files["config.json"] + b"\n"
    home.hub.repositories[NAME] = Repository({**files, "config.json": config}, commit=later)
    home.hub.revisions |= {"v2", "refs/pr/1"}
    home.run("pull", f"{NAME}@v2")
    home.run("pull", f"{NAME}@refs/pr/1")
    assert (home.cache / FOLDER / "refs/refs/pr/1").read_text() == later
    assert home.run("info", f"{NAME}@refs/pr/1", "--offline")
    blobs = home.cache / FOLDER / "blobs"
    n = len(list(blobs.iterdir()))
    listed = home.run("list")
    assert f"{NAME}  {COMMIT[:12]} main" in listed
    line = next(line for line in listed.split("\n") if later[:12] in line)
    assert {*line.split()[-1].split(",")} == {"v2", "refs/pr/1"}
    assert "nothing is removed" in home.refusal("rm", f"{NAME}@v2")
    said = home.run("rm", f"{NAME}@v2", "--yes")
    assert said == "removed 0.0 MB\n" and len(list(blobs.iterdir())) == n - 1
    home.check_whole(files)
    assert later[:12] not in home.run("list") and home.run("info", NAME, "--offline")
    assert "has no some-org/none" in home.refusal("rm", "some-org/none")
    home.run("rm", NAME, "--yes")
    assert not (home.cache / FOLDER).exists() and NAME not in home.run("list")


def test_what_cannot_be_read_is_listed_and_shared_bytes_are_never_guessed(home, files, tmp_path):
    """A file and a link with names of models; a link with a path that is too long for the list; and
    files that are no links, which are as many bytes each."""
    home.run("pull", NAME)
    (home.cache / "models--a--file").write_bytes(b"")
    (home.cache / "models--a--link").symlink_to(tmp_path)
    listed = home.run("list")
    for name in ("a/file", "a/link"):
        assert f"?  {name}  cannot be read: " in listed
    assert f"{NAME}  {COMMIT[:12]} main" in listed and f"in {home.cache}" in listed
    home.hub.repositories[NAME] = Repository(dict(files), commit="f" * 40)
    home.hub.revisions.add("v2")
    home.run("pull", f"{NAME}@v2")
    snapshots = home.cache / FOLDER / "snapshots"
    for commit, name in ((COMMIT, "x"), ("f" * 40, "y"), ("f" * 40, "z")):
        (snapshots / commit / name).write_bytes(bytes(300_000))
    long = snapshots / COMMIT / ("a" * 200) / ("b" * 200)
    long.parent.mkdir()
    long.symlink_to("../../../blobs/" + "0" * 64)
    (home.cache / FOLDER / "blobs" / ("0" * 64)).write_bytes(b"1")
    assert "which bytes are shared is not known" in home.refusal("rm", f"{NAME}@v2", "--yes")
    assert (snapshots / ("f" * 40)).exists()
    long.unlink()
    long.parent.rmdir()
    assert home.run("rm", f"{NAME}@v2", "--yes") == "removed 0.6 MB\n"
    home.run("rm", NAME, "--yes")
    assert not (home.cache / FOLDER).exists()


def tree(path):
    """Folders, files with their bytes, and links with where they lead, but for what each program
    has of its own."""
    found = {}
    for each in sorted(path.rglob("*")):
        name = str(each.relative_to(path))
        if each.is_symlink():
            found[name] = os.readlink(each)
        elif each.is_file():
            found[name] = hashlib.sha256(each.read_bytes()).hexdigest()
    return found


def test_the_cache_is_that_of_huggingface_hub(home, files, tmp_path):
    """Both programs write the same files, and each finds those of the other."""
    client = pytest.importorskip("huggingface_hub")
    home.run("pull", NAME)
    theirs = tmp_path / "theirs"
    patterns = list((home.cache / FOLDER / "snapshots" / COMMIT).iterdir())
    client.snapshot_download(NAME, cache_dir=theirs, endpoint=home.hub.address,
                             allow_patterns=[path.name for path in patterns])
    ours, other = tree(home.cache), tree(theirs)
    parts = tuple(f"{FOLDER}/{part}/" for part in ("blobs", "refs", "snapshots"))
    assert "CACHEDIR.TAG" in ours and FOLDER + "/refs/main" in ours
    assert {k: v for k, v in ours.items() if k.startswith(parts)} == {
        k: v for k, v in other.items() if k.startswith(parts)}
    home.env["HF_HUB_CACHE"] = str(theirs)
    assert home.run("info", NAME, "--offline")
    found = client.snapshot_download(NAME, cache_dir=home.cache, local_files_only=True)
    assert found == str(home.cache / FOLDER / "snapshots" / COMMIT)
