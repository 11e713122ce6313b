"""seam: a number that lies across a place where a server may change hands.

Long prompts are computed in chunks, kept in pages and read through windows, and those begin at
round numbers of tokens.  A position counted twice at such a place is seen by nothing that lies
elsewhere: with RoPE only distances count, and they are right on either side.  Prose is as likely as
before; but the digits across the seam are no longer one after the other, and the model remembers
another number.

    position   0 ......................... length / 2 ................ about 100 further
               [ preamble, prose  ... for cold-sun is 461|2734. ... prose ][ question ]

The sample's index says how many of the seven digits lie before the seam.  The prose is the same for
all samples of a length: a server with a prefix cache computes it once.
"""
from ..rng import Rng
from ..text import haystack, names_of_things
from .magic import PREAMBLE, question_of_one, statement

N_DIGITS = 7
# Words are whole, and a template's half is a guess, so up to MOST_MISSING digits and one more may come
# to lie before the seam than are meant to; one at least stays behind it.
MOST_BEFORE, MOST_MISSING = 3, 2
WORDS_AFTER = 40
TOKENS_PER_WORD = 1.35


def seam(job):
    [key] = names_of_things(job.rng("key"), 1)
    value = job.rng("value").digits(N_DIGITS)
    sentence = statement(key, value)
    before = sentence[:sentence.index(value) + 1 + job.index % MOST_BEFORE]
    # Joined by spaces: a line break may be a token or none.
    words = haystack("prose", Rng(job.seed, job.task, job.length, "prose"), 4 * job.length,
                     job.books).split()

    def context(n_words, sentence):
        return f"{PREAMBLE}{' '.join(words[:n_words])} {sentence}"

    n_words = cut(job, len(words), lambda n: context(n, before))
    after = " ".join(words[n_words:n_words + WORDS_AFTER])
    sample = job.sample(f"{context(n_words, sentence)} {after}\n",
                        [question_of_one(key, value, 0.5)])
    over = job.tokens_over(sample)
    if over > 0:
        raise ValueError(f"{job.task} needs {over} tokens more than {job.length}")
    return sample


def cut(job, n_words, text):
    """How many words make text(n) end at the seam or a little earlier.  Of a template one half is
    taken to stand before the text and the other behind it."""
    template = job.count_tokens("")
    place = job.length // 2 + template - template // 2
    low, high, n = 0, n_words + 1, int(place / TOKENS_PER_WORD)
    while high - low > 1:
        over = job.count_tokens(text(n)) - place
        if over > 0:
            high = n
        else:
            low = n
            if over >= -MOST_MISSING:
                break
        n = max(low + 1, min(high - 1, n - round(over / TOKENS_PER_WORD)))
    return low
