"""A model with an attention sink needs the first token, wherever the window has got to, and needs it
near: at the distance that the cache makes, not that of the text.  A token that a tokenizer puts before
every text is such a first token (StreamingLLM, Table 4)."""
import csv
import io
import json
import subprocess
import sys

import pytest

from random_model import write_random_model
from server import DEVICE, ROOT

WINDOW = 64


def run_script(name, *arguments):
    command = [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def table_of(url, *arguments):
    """{the tokens of a row: {column: nats}}, and all of it as it was printed."""
    text = run_script("quality/streaming_perplexity.py", "--url", url, "--window", WINDOW, *arguments)
    rows = {row.pop("tokens"): row for row in csv.DictReader(io.StringIO(text))}
    return {name: row for name, row in rows.items() if name[0].isdigit()}, text


@pytest.mark.skipif(DEVICE != "cpu", reason="about the model, not the device")
def test_a_planted_sink_must_stay_and_stay_near(serve, tmp_path):
    model = tmp_path / "sink"
    run_script("fixtures/plant_sink.py", model, "--windows", 12, "--control", 2, "--rows", 128,
               "--pair", 14)  # turns once in some 2,600 tokens
    server = serve(model=model)
    rows, text = table_of(server.url, "--tokens", 5 * WINDOW, "--bucket", WINDOW)
    first = rows.pop(f"0-{WINDOW - 1}")
    assert first["sink 0 cache"] == first["sink 4 cache"]  # nothing has gone yet
    for row in rows.values():
        assert float(row["sink 0 cache"]) > float(row["sink 4 cache"]) + 1, text
    rows, text = table_of(server.url, "--tokens", 16 * WINDOW, "--bucket", 8 * WINDOW, "--chunk",
                          WINDOW // 4, "--sinks", 4, "--positions", "cache,text")
    first, *later = rows.values()
    for row in later:
        assert float(row["sink 4 cache"]) < float(first["sink 4 cache"]) + 0.5, text
        assert float(row["sink 4 text"]) > float(row["sink 4 cache"]) + 1, text


PLACEHOLDER = "<|pad|>"  # a token that no text has otherwise


def put_before_texts(model, token):
    """The token's number."""
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    (number,) = (each["id"] for each in tokenizer["added_tokens"] if each["content"] == token)
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing", "single": [first, text],
        "pair": [first, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}}}
    path.write_text(json.dumps(tokenizer))
    return number


def test_a_learned_sink_token_is_the_first_of_every_text_and_the_first_sink(serve, tmp_path):
    model = write_random_model(tmp_path / "placeholder", 512)
    number = put_before_texts(model, PLACEHOLDER)
    server = serve(model=model)
    text = "A long text about nothing in particular, which goes on for a while. " * 6
    (tokens,) = (server.post("/tokenize", {"prompt": text}).json()["tokens"],)
    assert tokens[0] == number and number not in tokens[1:] and len(tokens) > 80

    def answer(prompt, sink):
        policy = {"type": "streaming", "sink": sink, "recent": 16, "chunk": 8}
        return server.complete(prompt=prompt, kv_policy=policy, max_tokens=30, logprobs=3,
                               temperature=0, ignore_eos=True)["choices"][0]["logprobs"]

    assert answer(text, 1) == answer(tokens, 1)
    assert answer(text, 1) != answer(text, 0)  # without it the model reads something else
    assert answer(tokens[1:], 1) != answer(text, 1)  # ids are taken as they are
