"""vt: a variable's value is found by following assignments back to a number.

Asked in three ways: with the steps written out, which needs one hop a step; by the value alone,
which needs the whole chain before the first token; and for all variables with a value."""
import string

from .job import Exercise
from .magic import enumeration
from .sample import Loss

INTROS = ["Memorize and track the chain(s) of variable assignment hidden in the following text."
          "\n\n"] * 3 + ["Follow the variables in this text.\n\n", ""]


def names_for(job):
    style = job.choose("letters", "letters", "letters", "numbered", "noun")
    prefix = "VAR " if style == "letters" else ""
    if style == "letters":
        n = job.choose(3, 4, 5, 5, 5)
        return prefix, lambda: job.letters(n, string.ascii_uppercase)
    if style == "numbered":
        return prefix, lambda: f"X{job.rng.randint(1, 999)}"
    return prefix, lambda: f"var_{job.word_of('adjectives')}_{job.word_of('nouns')}"


def chains_of(job):
    """([[name, ...]], [value]): each chain's first variable has the value."""
    few, many = (max(1, min(most, job.n_tokens // 250)) for most in (6, 30))
    n_chains = job.rng.randint(1, few) if job.chance(0.4) else job.rng.randint(few, many)
    lengths = [job.choose(1, 2, 3, 4, 4, 4, 5, 6) for _ in range(n_chains)]
    prefix, draw = names_for(job)
    names = iter(job.distinct(sum(lengths), draw))
    chains = [[next(names) for _ in range(length)] for length in lengths]
    return prefix, chains, job.distinct(n_chains, lambda: job.digits(5))


def assignments(job, prefix, chains, values):
    """The sentences of all chains, mixed; each chain's in order."""
    order = [i for i, chain in enumerate(chains) for _ in chain]
    job.rng.shuffle(order)
    at, sentences = [0] * len(chains), []
    for i in order:
        chain, j = chains[i], at[i]
        at[i] += 1
        if j == 0:
            sentences.append([(f"{prefix}{chain[0]} = ", Loss.PROMPT), (values[i], Loss.NONE),
                              (".", Loss.PROMPT)])
        else:
            sentences.append([(f"{prefix}{chain[j]} = {prefix}{chain[j - 1]}.", Loss.PROMPT)])
    return sentences


def question(job, chain, value):
    j = len(chain) - 1 if job.chance(0.7) else job.rng.randrange(len(chain))
    kind = job.choose("steps", "steps", "steps", "steps", "value", "all")
    if kind == "steps":
        steps = [f"{chain[i]} = {chain[i - 1]}" for i in range(j, 0, -1)]
        steps.append(f"{chain[0]} = {value}")
        return (f"What is the value of the variable {chain[j]}?",
                f"{', '.join(steps)}, so the value of {chain[j]} is {value}.")
    if kind == "value":
        return f"What is the value of the variable {chain[j]}? Answer with the value only.", value
    return (f"Find all variables that are assigned the value {value} in the text above.",
            f"{enumeration(chain)}.")


def vt(job):
    prefix, chains, values = chains_of(job)
    asked = job.some(list(zip(chains, values)), job.how_many(len(chains), 80))
    turns = dict(question(job, *one) for one in asked)
    context = job.weave(assignments(job, prefix, chains, values),
                        job.n_tokens - 60 - 70 * len(turns))
    return Exercise(job.rng.choice(INTROS), context, list(turns.items()))
