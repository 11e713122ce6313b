"""The number of a seam sample lies across the middle of its length, to the token."""
import pytest

from evaluation.tasks import generate
from evaluation.text import Books

N_DIGITS = 7
TOKENS_OF_CHAT_BEFORE = 4  # BOS, <|im_start|>, user, line break


@pytest.fixture(scope="module")
def make(count_tokens):
    books = Books.load()
    return lambda length, index: generate("seam", length, index, 1, count_tokens, books)


def digits_before_the_middle(tokenizer, sample):
    tokens = tokenizer.encode(sample.context, add_special_tokens=False).tokens
    value = list(sample.questions[0].references[0])
    first = next(i for i in range(len(tokens)) if tokens[i:i + N_DIGITS] == value)
    return sample.length // 2 - (TOKENS_OF_CHAT_BEFORE + first)


@pytest.mark.parametrize("length", [512, 8192])
def test_the_number_lies_across_the_middle(length, make, tokenizer):
    before = {digits_before_the_middle(tokenizer, make(length, index)) for index in range(12)}
    assert min(before) >= 1 and max(before) < N_DIGITS
    assert len(before) >= 4  # not always at the same digit


def test_samples_share_what_comes_before_the_number(make):
    contexts = [make(8192, index).context for index in range(4)]
    shared = min(context.index("The special magic number for") for context in contexts)
    assert shared > 10_000
    assert len({context[:shared] for context in contexts}) == 1
