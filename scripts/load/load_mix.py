"""What the clients of a load test ask: lengths of prompts and answers, and bodies of them.

    fixed          every prompt has --prompt-tokens, every answer --max-tokens
    sharegpt       lengths like those of chats that people shared: log-normal, prompts with a median of
                   110 tokens and a mean near 200, answers of 125 and 187; 4 to 2,048 tokens each
    long           documents: prompts evenly spread, by their logarithm, from an eighth of
                   --prompt-tokens to all of it, answers of --max-tokens
    conversation   --turns turns; each sends all that was said before, its answers included, and new
                   words with the lengths of sharegpt

The lengths of sharegpt are two distributions, not the data set: what can be read anywhere gives the same
load anywhere.  Prompts are random token ids, so their lengths are exact.  Chats and conversations,
and --words, are words, about a token each; the server's own counts are what is reported."""
import json
import math
import random

DEFAULTS = {"fixed": (128, 64), "sharegpt": (None, None), "long": (16384, 64),
            "conversation": (None, None)}
SHORTEST, LONGEST = 4, 2048
WORDS = ("the a of to and in is was it for on with he she they we you that this from at by not are "
         "but had have be his her one all so when there what up out if about who get which go me time "
         "day house little tree dog cat river big small red water made said went saw came new").split()


def log_normal(rng, median, sigma):
    return min(LONGEST, max(SHORTEST, round(rng.lognormvariate(math.log(median), sigma))))


def shared_lengths(rng):
    return log_normal(rng, 110, 1.1), log_normal(rng, 125, 0.9)


def lengths(options, rng):
    """Of each turn, the tokens that it adds to the prompt and those of its answer."""
    if options.mix == "fixed":
        return [(options.prompt_tokens, options.max_tokens)]
    if options.mix == "long":
        return [(round(options.prompt_tokens / 8 ** rng.random()), options.max_tokens)]
    if options.mix == "sharegpt":
        return [shared_lengths(rng)]
    return [shared_lengths(rng) for _ in range(options.turns)]


class Job:
    """What one client does between two of its own choices: a request, or a conversation."""

    def __init__(self, options, number):
        self.options = options
        self.rng = random.Random(options.seed * 1_000_003 + number)
        self.turns = lengths(options, self.rng)
        self.said = []  # strings: what was sent and answered, in turn

    def path(self):
        return f"/v1/{'chat/' if self.options.api == 'chat' else ''}completions"

    def ids(self, n):
        shared = random.Random(self.options.seed)
        n_shared = min(self.options.shared_prefix, n)
        return ([shared.randrange(self.options.vocabulary) for _ in range(n_shared)] +
                [self.rng.randrange(self.options.vocabulary) for _ in range(n - n_shared)])

    def words(self, n):
        shared = random.Random(self.options.seed)
        n_shared = 0 if self.said else min(self.options.shared_prefix, n)
        return " ".join([shared.choice(WORDS) for _ in range(n_shared)] +
                        [self.rng.choice(WORDS) for _ in range(n - n_shared)])

    def prompt(self, n):
        """The members of a body that hold the prompt, with n tokens or words more than was said."""
        wordy = self.options.words or self.options.mix == "conversation"
        if not wordy and self.options.api == "completions":
            return {"prompt": self.ids(n)}
        self.said.append(self.words(n))
        if self.options.api == "completions":
            return {"prompt": " ".join(self.said)}
        roles = ("user", "assistant")
        return {"messages": [{"role": roles[i % 2], "content": text}
                             for i, text in enumerate(self.said)]}

    def body(self, turn):
        n_new, n_answer = self.turns[turn]
        body = {**self.prompt(n_new), "max_tokens": n_answer,
                "temperature": self.options.temperature, "stream": True, "ignore_eos": True,
                "stream_options": {"include_usage": True}}
        if self.options.model:
            body["model"] = self.options.model
        return json.dumps(body).encode()

    def answered(self, text):
        self.said.append(text)
