"""How a prompt becomes what is sent to /v1/completions, and how a stream of turns goes on.

A template never names the token that begins every text (BOS): the server puts that in front of a
text prompt by itself, as its tokenizer says, and naming it here would send it twice."""
from dataclasses import dataclass

CHAT_MARK = "<|im_start|>"


@dataclass(frozen=True)
class Template:
    """A turn is before + prompt + after + answer + closing; turns follow one another directly."""

    name: str
    before: str
    after: str
    closing: str

    def apply(self, prompt):
        return self.before + prompt + self.after


CHATML = Template("chatml", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n",
                  "<|im_end|>\n")
RAW = Template("raw", "", "\n", "\n")
NAMED = {template.name: template for template in (RAW, CHATML)}


def from_text(text):
    """A template that was written out: `Q: {prompt}\\nA:`, or up to where the next turn begins:
    `Q: {prompt}\\nA: {answer}\\n`."""
    before, mark, rest = text.partition("{prompt}")
    if not mark:
        raise ValueError("a template must contain {prompt}")
    after, _, closing = rest.partition("{answer}")
    return Template(text, before, after, closing or "\n")


def choose(name, tokens):
    """(template, why).  name is auto, raw, chatml, or a text with {prompt}; auto asks the tokenizer
    whether the mark of ChatML is a token of its own."""
    if name in NAMED:
        return NAMED[name], "as asked"
    if name != "auto":
        return from_text(name), "as written"
    if not tokens.can_encode:
        return RAW, "there is no tokenizer to ask for a chat form"
    if len(tokens.encode(CHAT_MARK, special=False)) == 1:
        return CHATML, f"{CHAT_MARK} is a token of this model"
    return RAW, f"{CHAT_MARK} is no token of this model"
