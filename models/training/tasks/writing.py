"""Long answers about a long text: all there is of a kind, in order; the same in another form; a
part of the text, repeated.  What is generated goes through the text from its beginning to its end,
which is what a cache of heavy hitters is made for."""
from .job import Exercise
from .pairs import line
from .sample import Loss


def extract(job):
    """All notes hidden in a text, in its order; of some or of all owners."""
    n = job.rng.randint(2, max(2, min(60, job.n_tokens // 110)))
    owners = job.keys(job.rng.randint(1, min(4, n)), "name")
    told = [(job.rng.choice(owners), job.thing(), job.digits(5)) for _ in range(n)]
    sentences = [[(f"{owner} notes: {thing} costs ", Loss.PROMPT), (price, Loss.NONE),
                  (".", Loss.PROMPT)] for owner, thing, price in told]
    wanted = job.choose(None, job.rng.choice(told)[0])
    rows = [f"{thing}: {price}" for owner, thing, price in told if wanted in (None, owner)]
    asked = job.choose("List all notes with their prices, in the order of the text.",
                       "Write down every thing that is noted in the text, with its price.")
    if wanted:
        asked = f"List what {wanted} notes, with the prices, in the order of the text."
    size = job.n_tokens - 50 - 14 * len(rows)
    return Exercise("", job.weave(sentences, size), [(asked, "\n".join(rows))])


def rewrite(job):
    """A record in another form: lines as JSON, as a table, or backwards."""
    n = max(2, int((job.n_tokens - 80) / 43))
    found = [(job.thing(), job.digits(5)) for _ in range(n)]
    kind = job.choose("json", "table", "values")
    asked, rows = {
        "json": ("Write this record as a JSON object.",
                 "{" + ", ".join(f'"{k}": "{v}"' for k, v in found) + "}"),
        "table": ("Write this record as a table with the columns line and content.",
                  "| line | content |\n" + "\n".join(f"| {k} | {v} |" for k, v in found)),
        "values": ("Write down the numbers of this record, in its order.",
                   ", ".join(value for _, value in found))}[kind]
    context = [piece for pair in found for piece in line(*pair)]
    return Exercise("", context, [(asked, rows)])


def split_sentences(text):
    return [part.strip() + "." for part in text.split(". ") if 20 < len(part) < 240]


def next_sentence(job):
    """The sentence that follows another in the text."""
    n_asked = job.how_many(8, 110)
    text = job.prose(job.n_tokens - 50 - 105 * n_asked)
    sentences = split_sentences(" ".join(text.split()))[:-1]
    turns = {}
    flat = " ".join(text.split())
    for i in job.some(range(max(0, len(sentences) - 1)), n_asked):
        first, second = sentences[i], sentences[i + 1]
        if f"{first} {second}" in flat and flat.count(first) == 1:
            turns[f"Which sentence of the text comes after this one? {first}"] = second
    if not turns:
        return repeat(job)
    return Exercise("", [(flat, Loss.TEXT)], list(turns.items()), can_ask_first=False)


def repeat(job):
    """The text again, or its first words."""
    text = " ".join(job.prose(min((job.n_tokens - 40) / 2, 2000)).split())
    asked = job.choose("Repeat the text.", "Write the text above once more.", "Copy the text.")
    return Exercise(job.choose("Text:\n", ""), [(text, Loss.TEXT)], [(asked, text)])


def first_words(job):
    n_words = job.choose(3, 5, 8, 12, 20)
    text = " ".join(job.prose(job.n_tokens - 60 - 2 * n_words).split())
    words = text.split()
    asked, answer = job.choose(
        (f"What are the first {n_words} words of the text?", " ".join(words[:n_words])),
        (f"What are the last {n_words} words of the text?", " ".join(words[-n_words:])))
    return Exercise("", [(text, Loss.TEXT)], [(asked, answer)])
