"""Texts that must be understood while they are read.

In each of these the meaning of a sentence depends on the last one of another kind that came before
it, often thousands of tokens earlier:

    From here on, the speaker is Clara. ... prose ... The speaker's number is 4821. ... prose ...
    From here on, the speaker is Ben.   ... prose ... The speaker's number is 7030. ... prose ...

    Which number is Clara's?

Whoever reads "The speaker's number is 4821" must look back for the speaker then: what was looked up
is kept with the sentence, and the question finds it there.  At the question it is too late, for
"the last speaker before that sentence" is a place that no query can name.  So a model that reads
with patterns that miss the far sentence cannot answer, though its last tokens see everything.  One
hop of retrieval cannot tell such patterns from good ones.
"""
from .job import Exercise
from .sample import Loss

OWNERS = [  # the sentence that sets, the one that depends on it, the question, the answer
    ("From here on, the speaker is {owner}.", "The speaker's {what} is {value}.",
     "What is the {what} of {owner}?", "The {what} of {owner} is {value}."),
    ("Here begins the chapter of {owner}.", "This chapter's {what} is {value}.",
     "What is the {what} of the chapter of {owner}?", "It is {value}."),
    ("{owner} takes the watch.", "The {what} of the watch is now {value}.",
     "What was the {what} when {owner} had the watch?", "It was {value}."),
    ("We have come to {owner}.", "Of this place we note the {what} {value}.",
     "Which {what} was noted at {owner}?", "{value}")]
WHATS = ["number", "code", "register", "mark", "price", "weight"]


def sections(job):
    """The last owner named before a sentence is whose it is."""
    sets, depends, asks, answers = job.rng.choice(OWNERS)
    n = job.rng.randint(2, max(2, min(40, job.n_tokens // 150)))
    whats = job.some(WHATS, job.rng.randint(1, 3))
    sentences, facts = [], []
    for owner in job.keys(n, "name" if n <= 20 else "person"):
        sentences.append([(sets.format(owner=owner), Loss.PROMPT)])
        for what in job.some(whats, job.rng.randint(1, len(whats))):
            value = job.digits(5)
            before, _, after = depends.format(what=what, value="\0").partition("\0")
            sentences.append([(before, Loss.PROMPT), (value, Loss.NONE), (after, Loss.PROMPT)])
            facts.append((asks.format(owner=owner, what=what),
                          answers.format(owner=owner, what=what, value=value)))
    turns = job.some(facts, job.how_many(len(facts), 40))
    return Exercise("", job.weave(sentences, job.n_tokens - 40 - 40 * len(turns)), turns)


def aliases(job):
    """A name that means somebody else from time to time: `the blue key` is Clara, later Ben."""
    alias = f"the {job.word_of('adjectives')} {job.word_of('nouns')}"
    n = job.rng.randint(2, max(2, min(20, job.n_tokens // 170)))
    sentences, facts = [], []
    for owner in job.keys(n, "name"):
        sentences.append([(f"From now on, {alias} means {owner}.", Loss.PROMPT)])
        thing, place = job.thing(), job.word_of("cities")
        sentence, asked, answer = job.choose(
            (f"The {thing} belongs to {alias}.", f"Who owns the {thing}?", f"{owner}."),
            (f"{alias[0].upper() + alias[1:]} goes to {place} with the {thing}.",
             f"Who goes somewhere with the {thing}?", f"{owner} goes to {place}."))
        sentences.append([(sentence, Loss.PROMPT)])
        facts.append((asked, answer))
    turns = job.some(facts, job.how_many(len(facts), 40))
    return Exercise("", job.weave(sentences, job.n_tokens - 40 - 40 * len(turns)), turns)


def rooms(job):
    """Somebody moves about and leaves things `here`: where is each thing?"""
    n_people = job.rng.randint(1, 3)
    people = job.keys(n_people, "name")
    at, sentences, facts = {}, [], []
    for _ in range(job.rng.randint(3, max(3, min(40, job.n_tokens // 90)))):
        name = job.rng.choice(people)
        if name not in at or job.chance(0.5):
            at[name] = job.word_of("cities")
            sentences.append([(f"{name} travels to {at[name]}.", Loss.PROMPT)])
        else:
            thing = job.thing()
            sentences.append([(f"There {name} leaves the {thing}.", Loss.PROMPT)])
            facts.append((f"Where is the {thing}?", f"The {thing} is in {at[name]}."))
    if not facts:
        name, thing = people[0], job.thing()
        at.setdefault(name, job.word_of("cities"))
        sentences += [[(f"{name} travels to {at[name]}.", Loss.PROMPT)],
                      [(f"There {name} leaves the {thing}.", Loss.PROMPT)]]
        facts = [(f"Where is the {thing}?", f"The {thing} is in {at[name]}.")]
    turns = job.some(facts, job.how_many(len(facts), 40))
    return Exercise("", job.weave(sentences, job.n_tokens - 40 - 40 * len(turns)), turns)


def snapshots(job):
    """Variables that are assigned anew, and copies of them: a copy keeps the value of its time."""
    n_variables = job.rng.randint(1, 4)
    variables = job.distinct(n_variables, lambda: job.letters(3))
    value_of, copies, sentences = {}, [], []
    for _ in range(job.rng.randint(3, max(3, min(40, job.n_tokens // 90)))):
        name = job.rng.choice(variables)
        if name not in value_of or job.chance(0.5):
            value_of[name] = job.digits(4)
            sentences.append([(f"Set {name} to ", Loss.PROMPT), (value_of[name], Loss.NONE),
                              (".", Loss.PROMPT)])
        else:
            copy = job.letters(6)
            sentences.append([(f"Copy {name} to {copy}.", Loss.PROMPT)])
            copies.append((copy, value_of[name]))
    facts = [(f"What is the value of {copy}?", f"The value of {copy} is {value}.")
             for copy, value in copies + list(value_of.items())]
    turns = job.some(facts, job.how_many(len(facts), 35))
    return Exercise("", job.weave(sentences, job.n_tokens - 40 - 36 * len(turns)), turns)
