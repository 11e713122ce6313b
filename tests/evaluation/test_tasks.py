"""Every task: the same bytes everywhere, prompts that fit and fill their length, and expected
answers that its own context proves."""
import hashlib
import json
import re
from collections import Counter
from dataclasses import asdict

import pytest

from evaluation.tasks import TASKS, card, generate, judge
from evaluation.tasks.card import SHIPPED
from evaluation.tasks.job import N_DEPTHS
from evaluation.text import Books

# SHA-256, its first 16 digits, of the samples 0, 1, 2 at 1,024 and 0, 1 at 4,096 tokens of seed 1.
# A change of any of them makes earlier results incomparable: it wants a reason.
PINNED = {
    "passkey": "f5fa5a75b655d5d5",
    "number": "f4c34be9fecf2de1",
    "kv": "78621d87d1b0256f",
    "niah": "31628db51f4a010f",
    "multikey": "71cbee3e22ce189f",
    "multivalue": "c0d4e4f429f31a5a",
    "multiquery": "13432f31631ea4d7",
    "vt": "09e9d3295db6cbcf",
    "cwe": "531282afad9b0d50",
    "fwe": "f717c7666d6d22a3",
    "twostage": "78c417460f784ce7",
    "lines": "7be4dedbcbe3eabf",
    "people": "56f322b9790f3f60",
    "seam": "8e994946e607aab4",
    "sections": "8c702ed331308c74",
    "snapshots": "54ed511a07a30538",
}
# Ends soon after its middle, and counts once more to get there to the token.
SHORT = {"seam"}


@pytest.fixture(scope="module")
def books():
    return Books.load()


@pytest.fixture(scope="module")
def make(count_tokens, books):
    """make(task, length, index): a sample of seed 1; each is made once."""
    made = {}

    def one(*name):
        if name not in made:
            made[name] = generate(*name, 1, count_tokens, books)
        return made[name]

    return one


def questions_of(make, task):
    """(sample, question) of some samples of a task."""
    samples = [make(task, length, index) for length in (1024, 4096) for index in range(3)]
    return [(sample, question) for sample in samples for question in sample.questions]


@pytest.mark.parametrize("task", TASKS)
def test_samples_are_the_same_bytes_everywhere(task, make):
    digest = hashlib.sha256()
    for length, index in ((1024, 0), (1024, 1), (1024, 2), (4096, 0), (4096, 1)):
        digest.update(json.dumps(asdict(make(task, length, index)), sort_keys=True).encode())
    assert digest.hexdigest()[:16] == PINNED[task]


@pytest.mark.parametrize("task", sorted(set(TASKS) - SHORT))
@pytest.mark.parametrize("length", [1024, 4096, 32768])
def test_prompt_and_answer_fit_and_fill_the_length(task, length, make, count_tokens):
    sample = make(task, length, 0)
    totals = [count_tokens(sample.context + question.text) + question.max_tokens
              for question in sample.questions]
    assert max(totals) <= length
    least = 930 if task == "twostage" and length == 1024 else length - 64  # its dictionary ends
    assert max(totals) >= least


@pytest.mark.parametrize("task", TASKS)
def test_a_sample_takes_few_counts(task, count_tokens, books):
    calls = []

    def count(text):
        calls.append(len(text))
        return count_tokens(text)

    for index in range(5):
        generate(task, 4096, index, 2, count, books)
    assert len(calls) <= 5 * (6 if task in SHORT else 5)


def test_another_way_of_counting_is_filled_too(books):
    for task in set(TASKS) - SHORT:
        sample = generate(task, 3000, 0, 1, lambda text: 40 + len(text) // 3, books)
        longest = max(len(question.text) for question in sample.questions)
        total = 40 + (len(sample.context) + longest) // 3 + sample.questions[0].max_tokens
        assert 2900 < total <= 3000, task


@pytest.mark.parametrize("task", TASKS)
def test_too_short_a_length_is_said(task, count_tokens, books):
    with pytest.raises(ValueError, match=f"{task} needs .* tokens more than 40"):
        generate(task, 40, 0, 1, count_tokens, books)


@pytest.mark.parametrize("task", TASKS)
def test_samples_differ(task, make, count_tokens, books):
    other_seed = generate(task, 1024, 0, 2, count_tokens, books)
    contexts = [make(task, 1024, index).context for index in range(3)] + [other_seed.context]
    assert len(set(contexts)) == 4


@pytest.mark.parametrize("task", sorted(set(TASKS) - {"fwe"}))
def test_the_expected_answer_is_right_and_has_room(task, make, tokenizer):
    for _, question in questions_of(make, task):
        verdict = judge(question, question.expected)
        assert verdict["score"] == 1 and verdict["exact"] and verdict.get("sum", True)
        assert len(tokenizer.encode(question.expected).ids) < question.max_tokens


@pytest.mark.parametrize("task", TASKS)
def test_questions_about_a_context_differ_and_are_of_one_kind(task, make):
    for length in (1024, 4096):
        questions = make(task, length, 0).questions
        assert len({question.text for question in questions}) == len(questions)
        assert len({question.score for question in questions}) == 1


@pytest.mark.parametrize("task", ["passkey", "number", "niah"])
def test_ten_samples_visit_every_depth(task, make):
    depths = [make(task, 1024, index).depth for index in range(2 * N_DEPTHS)]
    grid = [i / (N_DEPTHS - 1) for i in range(N_DEPTHS)]
    assert sorted(depths[:N_DEPTHS]) == sorted(depths[N_DEPTHS:]) == grid
    assert depths[:N_DEPTHS] != depths[N_DEPTHS:]


@pytest.mark.parametrize("task", ["passkey", "number", "niah"])
def test_the_needle_lies_at_its_depth(task, make):
    for index in range(N_DEPTHS):
        sample = make(task, 4096, index)
        [question] = sample.questions
        text = sample.context[sample.context.index("\n\n"):]
        place = text.index(question.references[0]) / len(text)
        assert abs(place - sample.depth) < 0.06  # a sentence of the books is long


def test_statements_are_in_the_context(make):
    for task in ("passkey", "number", "niah", "multikey", "people"):
        for sample, question in questions_of(make, task):
            assert sample.context.count(question.expected) == 1


def test_four_keys_are_asked_for_at_once(make):
    for sample, question in questions_of(make, "multiquery"):
        for key, value in re.findall(r"([\w-]+): (\d+)", question.expected):
            assert f"number for {key} is {value}." in sample.context
            assert key in question.text and value in question.references


def test_the_four_values_are_those_of_the_key_in_their_order(make):
    for sample, question in questions_of(make, "multivalue"):
        key = re.search(r"numbers for ([\w-]+)", question.text)[1]
        assert re.findall(rf"numbers for {key} is: (\d+)", sample.context) == question.references


def test_kv_is_json_with_the_value_under_the_key(make):
    for sample, question in questions_of(make, "kv"):
        pairs = json.loads(sample.context[sample.context.index("{"):])
        key = re.search(r'"(\w+)"', question.text)[1]
        assert question.references == [pairs[key]]


def test_a_line_has_the_register_content(make):
    for sample, question in questions_of(make, "lines"):
        key = re.search(r"in line ([\w-]+)\?", question.text)[1]
        assert f"line {key}: REGISTER_CONTENT is <{question.references[0]}>\n" in sample.context


def test_the_dictionary_has_the_colour_at_the_sum(make):
    for sample, question in questions_of(make, "twostage"):
        x, y = map(int, re.search(r"is (\d+) \+ (\d+) =", question.text).groups())
        assert "{0: '" in sample.context and sample.context.count("Dict is") == 1
        assert f" {x + y}: '{question.references[0]}'" in sample.context.replace("{0", " 0")


def test_following_the_assignments_in_their_order_gives_the_value(make):
    for sample, question in questions_of(make, "vt"):
        values = {}
        for name, source in re.findall(r"VAR ([A-Z]{5}) = (\d{5}|VAR [A-Z]{5})\.", sample.context):
            values[name] = values[source[4:]] if source.startswith("VAR") else source
        assert len(values) == 8
        assert [values[re.search(r"variable (\w+)\?", question.text)[1]]] == question.references


def read_in_order(context, sets, depends):
    """What the last match of `sets` before each match of `depends` says: {depends: sets}."""
    current, found = None, {}
    for match in re.finditer(f"{sets}|{depends}", context):
        if match[1]:
            current = match[1]
        else:
            found[match[2]] = current
    return found


def test_the_last_speaker_before_a_number_is_whose_it_is(make):
    for sample, question in questions_of(make, "sections"):
        owners = read_in_order(sample.context, r"the speaker is (\w+)\.", r"number is (\d{5})\.")
        [value] = question.references
        assert question.text == f"What is the number of {owners[value]}?"
        assert len(owners) == len(set(owners.values())) == len(sample.questions)


def test_a_copy_has_the_value_of_its_time(make):
    for sample, question in questions_of(make, "snapshots"):
        values = read_in_order(sample.context, r"Set [A-Z]{3} to (\d{4})\.",
                               r"Copy [A-Z]{3} to ([A-Z]{6})\.")
        copy = re.search(r"value of ([A-Z]{6})\?", question.text)[1]
        assert question.references == [values[copy]] and len(values) == len(sample.questions)


@pytest.mark.parametrize(("task", "first", "second"), [
    ("sections", "the speaker is", "number is"), ("snapshots", "Set ", "Copy ")])
def test_what_a_sentence_depends_on_is_out_of_sight(task, first, second, make):
    context = make(task, 4096, 0).context
    for match in re.finditer(second, context):
        distance = match.start() - context.rindex(first, 0, match.start())
        assert distance > 1200  # characters: over 300 tokens


def test_the_common_words_are_the_most_common(make):
    for sample, question in questions_of(make, "cwe"):
        counts = Counter(re.findall(r"\d+\. ([a-z]+)", sample.context))
        assert {word for word, _ in counts.most_common(5)} == set(question.references)
        assert counts.most_common(6)[5][1] < counts[question.references[0]] / 5


def test_the_frequent_words_are_ranks_two_to_four(make):
    for sample, question in questions_of(make, "fwe"):
        ranks = Counter(sample.context.split("\n\n")[1].split()).most_common(5)
        assert [word for word, _ in ranks[:4]] == ["......", *question.references]
        assert ranks[3][1] > ranks[4][1]


def test_the_card_is_the_shipped_file_and_its_templates_prefix_is_put_back_by_the_template(
        count_tokens):
    samples = card()
    with open(SHIPPED, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert [f"<|im_start|>user\n{sample.context}" for sample in samples] == [
        row["prefix"] for row in rows]
    assert len({(sample.task, sample.length, sample.index) for sample in samples}) == 189
    assert Counter(sample.task for sample in samples)["card/passkey"] == 21
    for sample in samples:
        for question in sample.questions:
            assert judge(question, question.expected)["score"] == 1
            assert judge(question, question.expected + " And more.")["score"] == 0
