"""Random numbers are the same everywhere; answers are scored as chapter and card say."""
import pytest

from evaluation.rng import Rng
from evaluation.tasks import Question, judge


def test_a_name_gives_the_same_numbers_everywhere():
    rng = Rng(7, "passkey", 4096, 0)
    assert [rng.integer(1000) for _ in range(6)] == [932, 80, 842, 659, 727, 573]


def test_splitmix64_is_the_published_one():
    rng = Rng()
    rng._state = 1234567
    assert [rng._next() for _ in range(3)] == [
        6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_shuffle_loses_nothing_and_a_sample_repeats_nothing():
    rng = Rng("shuffle")
    assert sorted(rng.shuffle(range(100))) == list(range(100))
    assert len(set(rng.sample(range(50), 50))) == 50


def test_every_integer_is_about_as_likely():
    rng = Rng("uniform")
    counts = [0] * 5
    for _ in range(5000):
        counts[rng.integer(5)] += 1
    assert min(counts) > 850 and max(counts) < 1150  # 1,000 +- 5 standard deviations


@pytest.mark.parametrize("answer, score, exact", [
    ("The pass key is 12345.", 1.0, True),
    (" The pass key is 12345.\n", 1.0, True),
    ("It is 12345", 1.0, False),
    ("The pass key is 123456.", 0.0, False),
    ("", 0.0, False),
])
def test_a_reference_counts_as_a_word_of_its_own(answer, score, exact):
    question = Question("?", ["12345"], "contains_all", 15, "The pass key is 12345.")
    assert judge(question, answer) == {"score": score, "exact": exact}


def test_a_fraction_counts_what_was_found():
    question = Question("?", ["lamp", "Art", "tree", "room"], "contains_fraction", 15)
    assert judge(question, "LAMP, start, art, trees") == {"score": 0.5, "exact": None}


def test_what_else_a_question_asks_for_is_judged_beside_the_score():
    question = Question("?", ["navy"], "contains_all", 15, detail={"also": {"sum": "14"}})
    assert judge(question, "10 + 4 = 14, red") == {"score": 0.0, "exact": None, "sum": True}
