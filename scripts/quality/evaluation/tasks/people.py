"""people: facts about some people, scattered through a text."""
from ..text import LISTS, distinct, weave
from .sample import Question

PREAMBLE = "Read the text and answer the questions.\n\n"
N_QUESTIONS = 12
FIRST_NAMES_SUFFICE = 16  # people; more of them have surnames, too

# What is said of somebody, what is asked, and what the value is drawn from (None: an age).
FACTS = [
    ("{} is {} years old.", "How old is {}?", None),
    ("{} is {}.", "What is the job of {}?", "jobs"),
    ("{} lives in {}.", "Where does {} live?", "cities"),
    ("{} likes to eat {}.", "What does {} like to eat?", "foods"),
    ("{} has {}.", "What pet does {} have?", "pets"),
    ("In free time, {} enjoys {}.", "What does {} enjoy in free time?", "hobbies"),
    ("The favourite colour of {} is {}.", "What is the favourite colour of {}?", "colours"),
]


def names(rng, n):
    if n <= FIRST_NAMES_SUFFICE:
        return rng.sample(LISTS["names"], n)
    return distinct(n, lambda: f"{rng.choice(LISTS['names'])} {rng.choice(LISTS['surnames'])}")


def tell(rng, name):
    """Two to five facts about one person: (statement, question, value), and where they stand."""
    facts = []
    for statement, question, source in rng.sample(FACTS, rng.between(2, 5)):
        value = rng.choice(LISTS[source]) if source else str(rng.between(19, 90))
        facts.append((statement.format(name, value), question.format(name), value))
    if rng.integer(2):
        depths = [rng.integer(1000) / 1000] * len(facts)  # all of them in one place
    else:
        depths = [rng.integer(1000) / 1000 for _ in facts]
    return list(zip(depths, facts))


def bare(value):
    """Without its article, which another model may leave out."""
    return value.removeprefix("a ").removeprefix("an ")


def people(job):
    n_people = max(4, min(20, job.length // 256))
    rng = job.rng("facts")
    told = [fact for name in names(rng, n_people) for fact in tell(rng, name)]
    asked = job.rng("asked").sample(told, min(N_QUESTIONS, len(told)))
    questions = [Question(text, [bare(value)], "contains_all", 40, statement, depth)
                 for depth, (statement, text, value) in asked]
    kind = job.kind(prose=3, filler=1)

    def build(n_chars):
        pieces = [(depth, statement) for depth, (statement, _, _) in told]
        return job.sample(f"{PREAMBLE}{weave(job.haystack(kind, n_chars), pieces)}\n", questions)

    return job.fill(build)
