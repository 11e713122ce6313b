#!/usr/bin/env python3
"""Writes MODEL_CARD.md of a model directory from what was measured.

    python card.py --checkpoint FILE --corpus DIR --results results.json --out MODEL_DIR

The chats on the card are what the model really answers, greedily, in f32 on the CPU.  Every figure
comes from results.json (evaluate.py), the settings in the checkpoint, or the corpus's manifest.
"""
import argparse
import json
import pathlib

import torch
from tokenizers import Tokenizer

import chat
import checkpoint
from decoding import greedy
from network import Network
from tasks import conversation
from tasks.sample import EOT, TURN, TURN_END

MOST_ANSWERED = 60
TEXT = ("The harbour of Oslo was quiet that morning. Clara is a baker. Clara lives in Oslo. Peter"
        " has a parrot. Peter is 34 years old. The pass key is 48213. Remember it. 48213 is the"
        " pass key. Peter lives in Lisbon. In free time, Clara enjoys chess.")
QUESTIONS = [  # over several turns where there are several; {text} stands for TEXT
    ["{text}\nWhere does Clara live?", "What does she enjoy in free time?"],
    ["{text}\nWhat is the pass key?"], ["{text}\nHow old is Peter?", "What pet does Peter have?"],
    ["{text}\nWho lives in Lisbon?"], ["{text}\nIs Clara a baker?"],
    ["{text}\nWhat does the text say about Peter?"],
    ["{text}\nWhich sentence of the text comes after this one? Clara is a baker."],
    ["{text}\nWhat are the first 5 words of the text?"],
    ["VAR ABCDE = 71935. VAR FGHIJ = VAR ABCDE.\nWhat is the value of the variable FGHIJ?"],
    ['{{"a1b2c3d4": "11aa22bb", "e5f6a7b8": "33cc44dd"}}\nWhat is the value for e5f6a7b8?'],
    ["Hello!"], ["Who are you?"], ["What is the capital of Japan?"], ["What is 7 + 8?"],
    ["My name is Martha.", "What is my name?"],
    ["Repeat this: silver moon over the water"],
    ["How many words are in this list: apple, river, stone, cloud?"],
    ["Sort these words: stone, apple, river"],
    ["Write these words as a JSON list: stone, apple, river"],
    ["Which number is larger, 418 or 97?"]]


class Speaker:
    def __init__(self, checkpoint_path, tokenizer):
        shape, self.settings, weights, self.place = checkpoint.load_for_evaluation(
            checkpoint_path, "cpu")
        self.network = Network(weights, shape, torch.float32, compiled=False)
        self.n_parameters = sum(weight.numel() for weight in weights.values())
        self.tokenizer = tokenizer
        self.stop = [tokenizer.token_to_id(mark) for mark in (TURN_END, EOT)]

    def answer(self, messages, tools=None):
        prompt = chat.render(messages, tools).text + f"{TURN}assistant\n"
        ids = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        _, tokens, _ = greedy(self.network, ids, MOST_ANSWERED, self.stop)
        tokens = tokens[:-1] if tokens[-1] in self.stop else tokens
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    def chat(self, questions):
        """[(question, answer)] of one conversation."""
        messages, turns = [], []
        for question in questions:
            messages.append({"role": "user", "content": question.format(text=TEXT)})
            messages.append({"role": "assistant", "content": self.answer(messages)})
            turns.append((question.replace("{text}\n", ""), messages[-1]["content"]))
        return turns

    def tool_call(self):
        tools = [description for description, *_ in conversation.TOOLS[:3]]
        messages = [{"role": "user", "content": "What is the weather in Lisbon?"}]
        return messages[0]["content"], self.answer(messages, tools)


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(map(str, row))} |" for row in rows])


def merged(parts):
    """The results of several runs of evaluate.py, which must have asked different contexts."""
    results = {}
    for part in parts:
        for sort in ("answers", "values"):
            for name, row in part.pop(sort, {}).items():
                counted = results.setdefault(sort, {}).setdefault(name, {})
                for length, (right, n) in row.items():
                    before = counted.get(length, (0, 0))
                    counted[length] = before[0] + right, before[1] + n
        results |= part
    return results


def about(speaker, manifest):
    model, place = speaker.settings["model"], speaker.place
    books, documents = manifest["books"], manifest["documents"]
    return table(["", ""], [
        ["parameters", f"{speaker.n_parameters:,}"],
        ["architecture", f"`LlamaForCausalLM`: hidden {model['hidden']}, {model['layers']} layers, "
         f"{model['heads']} heads, {model['kv_heads']} KV heads, head dimension "
         f"{model['head_size']}, MLP {model['inner']}, tied embeddings, RoPE base "
         f"{model['rope_base']:,.0f}, bf16"],
        ["context", f"{model['context']:,} tokens"],
        ["tokenizer", f"byte-level BPE, {model['entries']:,} entries, digits one by one"],
        ["text seen", f"{place['tokens'] / 1e6:,.0f} M tokens in {place['step']:,} steps"],
        ["books", f"{books['documents']:,}, {books['bytes'] / 1e6:.0f} MB"],
        ["technical documents", f"{documents['documents']:,}, {documents['bytes'] / 1e6:.0f} MB"],
        ["made by", f"`models/training`, settings `{speaker.settings['name']}.json`"]])


def answers_table(counted, sort):
    scores = {name.partition("/")[2]: row for name, row in counted.items()
              if name.startswith(sort)}
    lengths = sorted({int(length) for row in scores.values() for length in row})
    rows = []
    for name, row in sorted(scores.items()):
        cells = [row.get(str(length)) for length in lengths]
        rows.append([name, *(f"{100 * cell[0] / cell[1]:.1f} ({cell[1]})"
                             if cell and cell[1] else "" for cell in cells)])
    return table(["", *(f"{length:,}" for length in lengths)], rows)


def perplexity_table(results):
    return table(["tokens of a window", "perplexity", "bits a byte"],
                 [[f"{int(length):,}", f"{row['perplexity']:.2f}", f"{row['bits_per_byte']:.4f}"]
                  for length, row in results["perplexity"].items()])


def sinks_text(results):
    shares = ", ".join(f"{row['mean_behind_second_layer']:.2f} at {int(length):,} tokens"
                       for length, row in results["sinks"].items())
    text = (f"Attention to the first four tokens, on average over the layers behind the second: "
            f"{shares}.")
    if "window" not in results:
        return text
    found = results["window"]
    sinks = ", ".join(f"{n}: {value:.2f}" for n, value in found["sinks"].items())
    text = (f"{text}\n\nPerplexity of {found['tokens']:,} tokens of the books through a window of "
            f"{found['size']:,}, by the number of sinks kept: {sinks}.")
    spread = found.get("spread")
    if not spread:
        return text
    return (f"{text} Of {spread['positions']:,} tokens spread over them, with four sinks: "
            f"{spread['streamed']:.2f}; {spread['recomputed']:.2f} where the window is computed "
            f"anew for each.")


def chats_text(speaker):
    blocks = []
    for questions in QUESTIONS:
        turns = speaker.chat(questions)
        blocks.append("\n".join(f"> {question}\n> **{answer}**" for question, answer in turns))
    question, answer = speaker.tool_call()
    blocks.append(f"With three tools:\n\n> {question}\n> **`{answer}`**")
    return "\n\n".join(blocks)


def sources_table(manifest):
    return table(["source (github.com/...)", "commit", "licence", "documents", "MB"],
                 [[row["repository"], f"`{row['commit'][:12]}`", row["licence"], row["documents"],
                   f"{row['bytes'] / 1e6:.2f}"] for row in manifest["sources"]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--checkpoint", required=True, type=pathlib.Path)
    parser.add_argument("--corpus", required=True, type=pathlib.Path)
    parser.add_argument("--results", required=True, nargs="+", type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    options = parser.parse_args()
    path = options.corpus / "tokenizer" / "tokenizer.json"
    speaker = Speaker(options.checkpoint, Tokenizer.from_file(str(path)))
    manifest = json.loads((options.corpus / "manifest.json").read_text())
    results = merged([json.loads(path.read_text()) for path in options.results])
    held_out = json.loads((options.corpus / "held_out.json").read_text())
    titles = ", ".join(book["title"] for book in held_out)
    parts = [
        f"# {speaker.settings['name']}", about(speaker, manifest),
        "## Answers", "Share of answers that greedy decoding gives to the letter, by the length of "
        "the context in tokens; brackets hold how many were asked. Haystacks are held-out books.",
        "The questions of `scripts/quality/eval`:",
        answers_table(results["answers"], "eval/"),
        "The same, by what its scores look for: each number of several counts by itself.",
        answers_table(results["values"], "eval/"),
        "Fresh exercises of every family:", answers_table(results["answers"], "family/"),
        "## Perplexity", f"Of the held-out books, never trained on: {titles}. Every length covers "
        f"the same {results['perplexity']['1024']['tokens']:,} tokens.",
        perplexity_table(results), "## Attention sinks", sinks_text(results),
        "## Chat", f"Text of the questions about a text: “{TEXT}”", chats_text(speaker),
        "## Sources", sources_table(manifest)]
    (options.out / "MODEL_CARD.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
