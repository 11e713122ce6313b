"""Templates, and how many tokens a text has by each counter."""
import pytest

from evaluation import templates, tokens
from evaluation.client import Refused
from evaluation.tokens import LocalTokens, Tokens, UsageTokens
from server import MODEL
from tiny_server import TinyServer


@pytest.fixture(scope="module")
def local():
    return LocalTokens(str(MODEL))


def test_auto_takes_the_chat_form_of_a_model_that_has_it(local):
    template, why = templates.choose("auto", local)
    assert template.apply("Hi") == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert "<|im_start|>" in why


def test_auto_takes_the_raw_form_where_nothing_is_known():
    class Dumb(Tokens):
        can_encode = False

    assert templates.choose("auto", Dumb())[0] is templates.RAW


def test_auto_takes_the_raw_form_of_a_model_without_chat():
    class Bytes(Tokens):
        def encode(self, text, special):
            return list(text.encode())

    assert templates.choose("auto", Bytes())[0] is templates.RAW


def test_a_written_template_says_where_turns_end(local):
    template, _ = templates.choose("Q: {prompt}\nA: {answer}<end>\n", local)
    assert template.apply("1 + 1") == "Q: 1 + 1\nA: "
    assert template.closing == "<end>\n"
    with pytest.raises(ValueError, match="{prompt}"):
        templates.choose("Q:", local)


def test_a_local_tokenizer_counts_the_token_that_begins_a_prompt(local):
    assert local.beginning() == local.encode("", special=True) == [8183]
    assert local.count("Once upon a time") == 5


def test_texts_are_counted_once():
    class Counting(Tokens):
        n_asked = 0

        def encode(self, text, special):
            self.n_asked += 1
            return text.split()

    counting = Counting()
    assert [counting.count("a b"), counting.count("a b"), counting.count("c")] == [2, 2, 1]
    assert counting.n_asked == 2


def test_a_server_without_a_tokenizer_counts_by_its_usage():
    with TinyServer(n_busy=1) as server:
        found = tokens.find(server.url, "tiny", None)
        assert isinstance(found, UsageTokens)
        assert found.count("four words are here") == 4
        assert server.bodies[-1]["max_tokens"] == 1


def test_a_server_that_stays_busy_is_not_counted_by_for_ever():
    with TinyServer(n_busy=10**9) as server, pytest.raises(Refused, match="429: busy"):
        tokens.Poster(server.url, "tiny", None, patience_s=0.2)("/v1/completions", {})


def test_a_path_is_preferred_to_the_server(local):
    assert tokens.find("http://127.0.0.1:9", "m", None, str(MODEL)).count("a") == local.count("a")


def test_a_question_stands_behind_its_context_or_before_it():
    assert templates.CHATML.ask("Some text.\n", "Why?") == templates.CHATML.apply("Some text.\nWhy?")
    first = templates.CHATML.with_question_first()
    assert first.ask("Some text.\n", "Why?") == templates.CHATML.apply("Why?\n\nSome text.")
    assert first.name == "chatml, question first" and first.closing == templates.CHATML.closing
