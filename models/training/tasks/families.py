"""All families, how often each is drawn, and how a sample of a given size is made."""
import chat

from . import (conversation, counting, dialogue, magic, pairs, patterns, people, reading, twostage,
               variables, writing)
from .job import Job
from .sample import Loss

FAMILIES = {  # name -> (function, weight)
    "passkey": (magic.passkey, 2), "number": (magic.number, 3), "niah": (magic.niah, 3),
    "multikey": (magic.multikey, 9), "multivalue": (magic.multivalue, 22),
    "multiquery": (magic.multiquery, 8), "kv": (pairs.kv, 10), "lines": (pairs.lines, 10),
    "table": (pairs.table, 2), "stream": (pairs.stream, 2), "people": (people.people, 10),
    "vt": (variables.vt, 20), "cwe": (counting.cwe, 14), "fwe": (counting.fwe, 8),
    "tally": (counting.tally, 1), "twostage": (twostage.twostage, 6),
    "twolists": (twostage.twolists, 3), "sections": (reading.sections, 10),
    "aliases": (reading.aliases, 2), "rooms": (reading.rooms, 2),
    "snapshots": (reading.snapshots, 3), "extract": (writing.extract, 3),
    "rewrite": (writing.rewrite, 3), "next_sentence": (writing.next_sentence, 3),
    "repeat": (writing.repeat, 2), "first_words": (writing.first_words, 1),
    "patterns": (patterns.patterns, 3), "long_turns": (conversation.long_turns, 2),
}
CHATS = {"conversation": (conversation.conversation, 5),
         "continuation": (conversation.continuation, 1), "tools": (None, 3)}
LONGEST = {"repeat": 4096, "patterns": 4096, "tally": 4096, "cwe": 16384, "fwe": 16384,
           "first_words": 8192, "aliases": 8192, "rooms": 8192, "snapshots": 8192,
           "rewrite": 8192}  # tokens
SHORTEST = {"cwe": 400, "fwe": 400, "multiquery": 300, "rooms": 200, "long_turns": 200}
LONGEST_CHAT = 512
LEAST_FILLED = 0.8  # of the row; the rest of a row is padding
TRIES = 5


def build(name, job):
    """The sample of one family."""
    if name == "tools":
        messages, tools = conversation.tool_messages(job)
        if job.chance(0.2):
            messages.insert(0, {"role": "system", "content": job.rng.choice(chat.SYSTEM_PROMPTS)})
        return chat.render(messages, tools)
    function, _ = FAMILIES.get(name) or CHATS[name]
    return dialogue.render(job, function(job))


def names_for(n_tokens, chats):
    table = CHATS if chats else FAMILIES
    names = [name for name in table
             if SHORTEST.get(name, 0) <= n_tokens <= LONGEST.get(name, n_tokens)]
    return names, [table[name][1] for name in names]


def encoded(name, rng, n_tokens, library, tokenizer):
    """(ids, losses) of one sample with at most n_tokens, or None if none of a few tries fits.

    How many tokens a text has is known only when it is tokenised, so the budget of the next try is
    that of the last one, corrected by what came of it."""
    budget, best = n_tokens, None
    for _ in range(TRIES):
        ids, losses = build(name, Job(rng, budget, library)).encode(tokenizer)
        if len(ids) <= n_tokens:
            if best is None or len(ids) > len(best[0]):
                best = ids, losses
            if name in CHATS or len(ids) >= LEAST_FILLED * n_tokens:
                break
            budget = min(int(budget * min(1.3, 0.95 * n_tokens / len(ids))), 2 * n_tokens)
        else:
            budget = int(budget * 0.97 * n_tokens / len(ids))
        if budget < 60:
            break
    return best if best is not None and (best[1] == Loss.ANSWER).any() else None


def draw(rng, n_tokens, library, tokenizer, chats=False):
    """(name, ids, losses) of a family drawn by its weight."""
    names, weights = names_for(n_tokens, chats)
    while True:
        name = rng.choices(names, weights)[0]
        sample = encoded(name, rng, n_tokens, library, tokenizer)
        if sample is not None:
            return name, *sample
