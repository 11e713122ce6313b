"""How an answer is scored.

A reference counts as found where it stands as a word of its own, whatever its case: `45` is not in
`145`, nor `art` in `start`.
"""
import re


def contains(answer, reference):
    return re.search(rf"(?<!\w){re.escape(reference)}(?!\w)", answer, re.IGNORECASE) is not None


def contains_all(answer, references):
    return float(all(contains(answer, reference) for reference in references))


def contains_fraction(answer, references):
    return sum(contains(answer, reference) for reference in references) / len(references)


def equal(answer, references):
    return float(answer.strip() in references)


SCORES = {function.__name__: function for function in (contains_all, contains_fraction, equal)}


def judge(question, answer):
    """{"score": 0..1, "exact": whether the answer is the expected one, None where there is none},
    and one more entry for each thing that the question's detail lists under "also"."""
    verdict = {
        "score": SCORES[question.score](answer, question.references),
        "exact": None if question.expected is None else answer.strip() == question.expected,
    }
    for name, reference in question.detail.get("also", {}).items():
        verdict[name] = contains(answer, reference)
    return verdict
