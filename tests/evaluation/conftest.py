"""The tests of the evaluation import scripts/quality/evaluation, and the server that tests/e2e starts."""
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/quire-31m"

sys.path[:0] = [str(ROOT / "scripts/quality"), str(ROOT / "tests/e2e")]


@pytest.fixture(scope="session")
def tokenizer():
    """The independent implementation of the shipped tokenizer."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


@pytest.fixture(scope="session")
def count_tokens(tokenizer):
    """How many tokens a prompt has in the default model's chat form."""

    def count(text):
        prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        return 1 + len(tokenizer.encode(prompt, add_special_tokens=False).ids)  # 1: BOS

    return count
