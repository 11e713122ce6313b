"""card: the samples that come with the default model, on which its card reports."""
import json
import pathlib

from .sample import Question, Sample

SHIPPED = pathlib.Path(__file__).resolve().parents[4] / "models/quire-31m/eval/tasks.jsonl"
USER_TURN = "<|im_start|>user\n"  # belongs to the template, which the file has applied already
MAX_TOKENS = {"vt": 96, "multiquery": 96, "multivalue": 80, "cwe": 48}


def card(path=SHIPPED):
    """All of them, in the file's order: tasks card/passkey, card/niah, ...; an answer counts where
    it is the expected one to the letter, as the card counts."""
    samples, counts = [], {}
    with open(path, encoding="utf-8") as file:
        for row in map(json.loads, file):
            name = row["task"], row["length"]
            index = counts[name] = counts.get(name, -1) + 1
            questions = [Question(one["q"], [one["a"]], "equal",
                                  MAX_TOKENS.get(row["task"], 40), one["a"])
                         for one in row["questions"]]
            samples.append(Sample(f"card/{row['task']}", row["length"], index,
                                  row["prefix"].removeprefix(USER_TURN), questions))
    return samples
