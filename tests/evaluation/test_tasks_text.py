"""Haystacks: books without an end, evidence between sentences, lists without doubles."""
import pytest

from evaluation.rng import Rng
from evaluation.text import LISTS, Books, distinct, haystack, names_of_things, weave


def test_a_passage_begins_and_ends_with_whole_words():
    books = Books("one two three four ")
    assert books.passage(1, 11) == " two three"
    assert books.passage(4, 3) == ""  # no space for " three"


def test_books_go_on_past_their_last_page():
    books = Books("one two three ")
    assert books.passage(13, 30) == " one two three one two three"


def test_empty_books_are_refused():
    with pytest.raises(ValueError, match="empty"):
        Books(" \n")


@pytest.mark.parametrize("kind", ["prose", "filler", "words"])
def test_a_longer_haystack_begins_like_a_shorter_one(kind):
    books = Books.load()
    long = haystack(kind, Rng("hay"), 5000, books)
    short = haystack(kind, Rng("hay"), 2000, books)
    assert long.startswith(short) and len(long) > 4900 and 1900 < len(short) < 2100


def test_evidence_stands_between_sentences():
    text = "It rained. Mr. Bell slept. Nobody came. The end"
    assert weave(text, [(0.0, "A.")]) == "It rained. A. Mr. Bell slept. Nobody came. The end"
    assert weave(text, [(0.5, "A.")]) == "It rained. Mr. Bell slept. A. Nobody came. The end"
    assert weave(text, [(1.0, "A.")]) == "It rained. Mr. Bell slept. Nobody came. A. The end"


def test_evidence_between_paragraphs_is_a_paragraph():
    assert weave('"Yes."\n\nHe went.', [(0.5, "A.")]) == '"Yes."\n\nA.\n\nHe went.'


def test_evidence_that_meets_keeps_its_order():
    assert weave("It rained. It snowed.", [(0.4, "B."), (0.6, "A.")]) == (
        "It rained. B. A. It snowed.")


def test_a_text_of_one_sentence_takes_evidence_at_its_end():
    assert weave("no end", [(0.3, "A.")]) == "no end A."


def test_lists_hold_whole_words_once():
    assert set(LISTS) == {"adjectives", "nouns", "cities", "names", "surnames", "colours", "jobs",
                          "foods", "pets", "hobbies", "words"}
    for name, words in LISTS.items():
        assert len(set(words)) == len(words) > 10, name
        assert all(word == word.strip() and len(word) > 1 for word in words), name
    assert len(LISTS["colours"]) == 23 and "a butcher" in LISTS["jobs"]


def test_names_do_not_run_out():
    few, many = names_of_things(Rng("few"), 2000), names_of_things(Rng("many"), 20000)
    assert len(set(few)) == 2000 and len(set(many)) == 20000
    assert few[0].count("-") == 1 and many[0].count("-") == 2


def test_drawing_more_than_there_are_ends():
    with pytest.raises(ValueError, match="not 3 different"):
        distinct(3, iter([1, 2] * 1000).__next__)
