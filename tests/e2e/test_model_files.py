"""Files of a model directory, and files that settings name, that are not what they should be."""
import os
import shutil
import socket
import subprocess

import pytest

from server import BINARY, DEVICE_SETTINGS, MODEL, PATIENCE, WRAPPER

NAMES = ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors",
         "model.safetensors.index.json"]
# What may be read beside them: the setting that names it.
SETTINGS = ["--config", "--pattern-file", "--filters-file"]


def make_fifo(path):
    os.mkfifo(path)


def make_directory(path):
    path.mkdir()


def make_socket(path):
    here = os.open(path.parent, os.O_RDONLY)  # a socket's own path may be no longer than 107 bytes
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def make_device_link(path):
    path.symlink_to("/dev/zero")


KINDS = [make_fifo, make_directory, make_socket, make_device_link]


def start(*arguments):
    """Runs a server that is to refuse at once."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    return subprocess.run([*WRAPPER, BINARY, "serve", "--port", "0", *map(str, arguments)],
                          env={**clean, **DEVICE_SETTINGS}, capture_output=True, text=True,
                          timeout=20 * PATIENCE, check=False)


def copy_model(model, directory):
    for path in model.iterdir():
        if path.is_file():
            shutil.copy(path, directory / path.name)
    return directory


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_file_that_is_not_regular_is_refused_by_name(tmp_path, tiny_model, name, kind):
    copy_model(tiny_model, tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    if name == "model.safetensors.index.json":
        (tmp_path / "model.safetensors").unlink()
    kind(tmp_path / name)
    result = start(tmp_path)
    assert result.returncode == 1, result.stderr
    assert f"{name}: not a regular file" in result.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_settings_file_that_is_not_regular_is_refused_by_name(tmp_path, setting, kind):
    kind(tmp_path / "named")
    result = start(MODEL, setting, tmp_path / "named")
    assert result.returncode in (1, 2), result.stderr
    assert "named: not a regular file" in result.stderr
