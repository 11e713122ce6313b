"""twostage: what to look for is known only after a sum, which comes last.  No policy that judges
keys by the attention of the prompt can know which entry will matter."""
from ..text import LISTS
from .sample import Question

RULES = ("Let's play a game. You have a dict and a mathematical addition equation. The keys of a"
         " dictionary can be any number. You need to find the corresponding key value in the"
         " dictionary after performing the addition and output the value corresponding to that key."
         " The Dict is ")
N_QUESTIONS = 12
MOST_ENTRIES = 100
HAYSTACK_FROM = 2048  # tokens; a full dictionary has about 930


def twostage(job):
    if job.length < HAYSTACK_FROM:
        return job.fill(lambda n: game(job, n, 0), 1, MOST_ENTRIES, 6.5)
    return job.fill(lambda n_chars: game(job, MOST_ENTRIES, n_chars))


def game(job, n_entries, n_chars):
    """The dictionary stands behind the haystack, before it, or in its middle."""
    rng = job.rng("colours")
    colours = [rng.choice(LISTS["colours"]) for _ in range(n_entries)]
    entries = ", ".join(f"{i}: '{colour}'" for i, colour in enumerate(colours))
    depth = job.rng("place").choice([0.0, 0.5, 1.0])
    before, after = int(n_chars * depth), int(n_chars * (1 - depth))
    kind = job.kind(prose=7, filler=2, words=1)
    parts = [job.haystack(kind, before, "before") + "\n" if before else "",
             f"{RULES}{{{entries}}}\n",
             job.haystack(kind, after, "after") + "\n" if after else ""]
    return job.sample("".join(parts), questions(job, colours, depth), depth)


def questions(job, colours, depth):
    rng = job.rng("sums")
    asked = rng.sample(range(len(colours)), min(N_QUESTIONS, len(colours)))
    return [question(rng.integer(total + 1), total, colours[total], depth) for total in asked]


def question(x, total, colour, depth):
    return Question(
        f"The equation is {x} + {total - x} = ?\nMUST first output the result of the addition, and"
        " then answer the corresponding value based on the result.",
        [colour], "contains_all", 48,
        f"Because {x} + {total - x} = {total}, the color is {colour}.", depth,
        {"also": {"sum": str(total)}})
