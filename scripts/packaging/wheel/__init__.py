"""quire, an inference server for language models and long texts: the program is in bin/."""
import os
import pathlib
import sys

BINARY = pathlib.Path(__file__).resolve().parent / "bin/quire"


def main():
    """Becomes the program, with the arguments of this one."""
    os.execv(BINARY, [str(BINARY), *sys.argv[1:]])
