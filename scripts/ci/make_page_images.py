#!/usr/bin/env python3
"""Makes the pictures of docs/page.md: walks through the pages as a visitor does, and makes the pictures small.

    scripts/ci/make_page_images.py build/quire MODEL

MODEL is the real model with which the visitor chats, such as models/smollm2.gguf of scripts/fetch_pypi_model.  It needs
what scripts/test --ui installs."""
import os
import pathlib
import subprocess
import sys
import tempfile

from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs/images"
TESTS = ["tests/ui/test_walk.py", "tests/ui/test_inspect.py::test_the_live_view_moves",
         "tests/ui/test_inspect.py::test_schemes_and_widths"]
COLOURS = 64  # of a page with text and few areas; more are larger, and look the same


def main():
    binary, model = map(pathlib.Path, sys.argv[1:])
    shown = [each.name for each in IMAGES.glob("*.png")]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "QUIRE_TEST_BINARY": str(binary.resolve()), "QUIRE_UI_SCREENSHOTS": folder,
                       "QUIRE_UI_MODEL": str(model.resolve())}
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS], cwd=ROOT,
                       env=environment, check=True)
        for name in shown:
            picture = Image.open(pathlib.Path(folder, name)).convert("RGB")
            picture.quantize(COLOURS).save(IMAGES / name, optimize=True)
            print(name, picture.size, (IMAGES / name).stat().st_size, "bytes")


if __name__ == "__main__":
    main()
