"""twostage: what to look for is known only after a sum, which comes last; and over two lists."""
from .job import Exercise
from .pairs import surround
from .sample import Loss

RULES = ("Let's play a game. You have a dict and a mathematical addition equation. The keys of a"
         " dictionary can be any number. You need to find the corresponding key value in the"
         " dictionary after performing the addition and output the value corresponding to that key."
         " The Dict is ")
EQUATION = ("The equation is {a} + {b} = ?\nMUST first output the result of the addition, and then"
            " answer the corresponding value based on the result.")


def sum_question(job, values, what):
    total = job.rng.randrange(len(values))
    a = job.rng.randint(0, total)
    asked = EQUATION if job.chance(0.7) else "{a} + {b} = ?"
    return (asked.format(a=a, b=total - a),
            f"Because {a} + {total - a} = {total}, the {what} is {values[total]}.")


def twostage(job):
    n_asked = job.how_many(48, 75)
    room = job.n_tokens - 60 - 72 * n_asked
    most = max(6, min(101, int((room - 60) / 9)))
    n = most if job.chance(0.5) else job.rng.randint(5, most)
    what, name = job.choose(("color", "colours"), ("color", "colours"), ("color", "colours"),
                            ("word", "nouns"))
    values = [job.word_of(name) for _ in range(n)]
    mark = job.choose("'", "'", "")
    body = ", ".join(f"{i}: {mark}{value}{mark}" for i, value in enumerate(values))
    rules = RULES if job.chance(0.7) else ""
    pieces = [(f"{rules}{{{body}}}\n", Loss.NONE)]
    turns = dict(sum_question(job, values, what) for _ in range(n_asked))
    return Exercise("", surround(job, pieces, room - 9 * n - 60), list(turns.items()))


def twolists(job):
    """Who has which badge, and which badge opens which room: the room of a person."""
    n = job.rng.randint(2, max(2, min(40, job.n_tokens // 150)))
    names, badges = job.keys(n, "name" if n < 20 else "person"), job.keys(n, "thing")
    rooms = [job.digits(4) for _ in range(n)]
    first = [[(f"{name} carries the badge {badge}.", Loss.PROMPT)]
             for name, badge in zip(names, badges)]
    second = [[(f"The badge {badge} opens room ", Loss.PROMPT), (room, Loss.NONE),
               (".", Loss.PROMPT)] for badge, room in zip(badges, rooms)]
    sentences = first + second
    if job.chance(0.5):
        job.rng.shuffle(sentences)
    turns = []
    for i in job.some(range(n), job.how_many(n, 50)):
        turns.append(job.choose(
            (f"Which room can {names[i]} open?",
             f"{names[i]} carries the badge {badges[i]}, which opens room {rooms[i]}."),
            (f"Which room can {names[i]} open? Answer with the number only.", rooms[i])))
    return Exercise("", job.weave(sentences, job.n_tokens - 50 - 48 * len(turns)), turns)
