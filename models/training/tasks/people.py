"""people: facts about some people, scattered through a text, and twenty kinds of questions."""
from .job import Exercise
from .magic import enumeration
from .sample import Loss

# What is said, and asked, and answered; the list that the value is drawn from.
FACTS = {
    "age": (["{name} is {value} years old."], "How old is {name}?", "{name} is {value} years old."),
    "jobs": (["{name} is {value}.", "{name} works as {value}."], "What is the job of {name}?",
             "{name} is {value}."),
    "cities": (["{name} lives in {value}.", "The home of {name} is in {value}."],
               "Where does {name} live?", "{name} lives in {value}."),
    "foods": (["{name} likes to eat {value}."], "What does {name} like to eat?",
              "{name} likes to eat {value}."),
    "pets": (["{name} has {value}.", "{name} keeps {value}."], "What pet does {name} have?",
             "{name} has {value}."),
    "hobbies": (["In free time, {name} enjoys {value}."], "What does {name} enjoy in free time?",
                "In free time, {name} enjoys {value}."),
    "colours": (["The favourite colour of {name} is {value}."],
                "What is the favourite colour of {name}?",
                "The favourite colour of {name} is {value}."),
}
WHO = {"jobs": "Who is {value}?", "cities": "Who lives in {value}?",
       "foods": "Who likes to eat {value}?", "pets": "Who has {value}?",
       "hobbies": "Who enjoys {value} in free time?",
       "colours": "Whose favourite colour is {value}?"}
YES_NO = {"jobs": "Is {name} {value}?", "cities": "Does {name} live in {value}?",
          "foods": "Does {name} like to eat {value}?", "pets": "Does {name} have {value}?",
          "hobbies": "Does {name} enjoy {value}?",
          "colours": "Is {value} the favourite colour of {name}?"}
NUMBERS = "no one two three four five six seven eight nine ten eleven twelve".split()


def draw(job, fact):
    return str(job.rng.randint(18, 90)) if fact == "age" else job.word_of(fact)


def people_of(job, n):
    names = job.keys(n, "name" if n <= 20 else "person")
    return {name: {fact: draw(job, fact) for fact in job.some(list(FACTS), job.rng.randint(2, 5))}
            for name in names}


def one_fact(job, people):
    name = job.rng.choice(list(people))
    fact = job.rng.choice(list(people[name]))
    _, asked, answer = FACTS[fact]
    value = people[name][fact]
    return asked.format(name=name), answer.format(name=name, value=value)


def who(job, people):
    """Answers with all who share the value, in the order of the people."""
    fact = job.rng.choice(list(WHO))
    values = {facts[fact] for facts in people.values() if fact in facts}
    if not values:
        return one_fact(job, people)
    value = job.rng.choice(sorted(values))
    names = [name for name, facts in people.items() if facts.get(fact) == value]
    return WHO[fact].format(value=value), enumeration(names[:6]) + "."


def yes_no(job, people):
    name = job.rng.choice(list(people))
    known = [fact for fact in people[name] if fact in YES_NO]
    if not known:
        return one_fact(job, people)
    fact = job.rng.choice(known)
    truth = people[name][fact]
    value = truth if job.chance(0.5) else draw(job, fact)
    statement = FACTS[fact][2].format(name=name, value=truth)
    return (YES_NO[fact].format(name=name, value=value),
            f"{'Yes' if value == truth else 'No'}, {statement[0].lower() + statement[1:]}"
            if statement.startswith(("In ", "The ")) else
            f"{'Yes' if value == truth else 'No'}, {statement}")


def older(job, people):
    aged = [name for name, facts in people.items() if "age" in facts]
    if len(aged) < 2:
        return one_fact(job, people)
    a, b = job.some(aged, 2)
    ages = [int(people[name]["age"]) for name in (a, b)]
    if ages[0] == ages[1]:
        return f"Who is older, {a} or {b}?", f"{a} and {b} are both {ages[0]} years old."
    older_one = a if ages[0] > ages[1] else b
    return (f"Who is older, {a} or {b}?",
            f"{a} is {ages[0]} and {b} is {ages[1]} years old, so {older_one} is older.")


def everything(job, people):
    name = job.rng.choice(list(people))
    facts = [FACTS[fact][2].format(name=name, value=value)
             for fact, value in people[name].items()]
    return f"What does the text say about {name}?", " ".join(facts)


def count(job, people):
    if len(people) >= len(NUMBERS):
        return one_fact(job, people)
    names = list(people)
    return ("How many people does the text tell about, and who are they?",
            f"It tells about {NUMBERS[len(names)]}: {enumeration(names)}.")


KINDS = [one_fact, one_fact, one_fact, one_fact, yes_no, older]


def sentences_of(job, people):
    """Each person's facts in the order of `people`, together or apart."""
    told = []
    for name, facts in people.items():
        pieces = []
        for fact, value in facts.items():
            before, _, after = job.rng.choice(FACTS[fact][0]).format(
                name=name, value="\0").partition("\0")
            pieces.append([(before, Loss.PROMPT), (value, Loss.NONE), (after, Loss.PROMPT)])
        if job.chance(0.5):
            joined = pieces[0]
            for more in pieces[1:]:
                joined = [*joined, (" ", Loss.PROMPT), *more]
            told.append(joined)
        else:
            told += pieces
    return told


def people(job):
    n = job.rng.randint(1, max(1, min(40, job.n_tokens // 120)))
    known = people_of(job, n)
    sentences, kinds = sentences_of(job, known), [*KINDS, who, count, everything]
    if job.chance(0.5):
        job.rng.shuffle(sentences)
        kinds = KINDS  # the others' answers keep the order of the text
    turns = dict(job.rng.choice(kinds)(job, known) for _ in range(job.how_many(40, 40)))
    small = job.n_tokens < 400 or job.chance(0.1)
    size = 0 if small else job.n_tokens - 60 - 36 * len(turns)
    intro = job.choose("Read the text and answer the questions.\n\n",
                       "Read the text and answer the questions.\n\n",
                       "Answer the question with what the text says.\n\n", "")
    return Exercise(intro, job.weave(sentences, size), list(turns.items()))
