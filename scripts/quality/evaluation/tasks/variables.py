"""vt: a variable's value is found by following assignments back to a number."""
from ..text import distinct, weave
from .sample import Question

PREAMBLE = ("Memorize and track the chain(s) of variable assignment hidden in the following text."
            "\n\n")
N_CHAINS = 2
N_VARIABLES = 4  # of a chain, so three steps back
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def vt(job):
    rng = job.rng("chains")
    names = distinct(N_CHAINS * N_VARIABLES,
                     lambda: "".join(rng.choice(LETTERS) for _ in range(5)))
    chains = [names[i::N_CHAINS] for i in range(N_CHAINS)]
    values = [rng.digits(5) for _ in chains]
    pieces = [piece for chain, value in zip(chains, values) for piece in place(rng, chain, value)]
    pieces.sort(key=lambda piece: piece[0])
    questions = [question(chain, value) for chain, value in zip(chains, values)]
    kind = job.kind(prose=7, filler=2, words=1)

    def build(n_chars):
        text = weave(job.haystack(kind, n_chars), pieces)
        return job.sample(f"{PREAMBLE}{text}\n", questions)

    return job.fill(build)


def place(rng, chain, value):
    """The assignments of a chain stand in order: a value is known before it is passed on."""
    depths = sorted(rng.integer(1000) / 1000 for _ in chain)
    sources = [value] + [f"VAR {name}" for name in chain]
    return [(depth, f"VAR {name} = {source}.")
            for depth, name, source in zip(depths, chain, sources)]


def question(chain, value):
    back = list(reversed(chain))
    steps = [f"{name} = {source}" for name, source in zip(back, back[1:] + [value])]
    return Question(f"What is the value of the variable {back[0]}?", [value], "contains_all", 96,
                    f"{', '.join(steps)}, so the value of {back[0]} is {value}.")
