#!/usr/bin/env python3
"""Writes docs/settings.md from what `quire serve --help-all` prints and config/quire.json explains.

    scripts/ci/make_settings_doc.py [--check] [build/quire]

--check writes nothing, and exits 1 when the file is not what would be written."""
import json
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/settings.md"
HEAD = """\
# Settings

<!-- Written by scripts/ci/make_settings_doc.py from `quire serve --help-all` and config/quire.json. -->

Every setting of `quire serve` has a flag, an environment variable and a key in a JSON file:

    quire serve --max-num-seqs 64
    QUIRE_MAX_NUM_SEQS=64 quire serve
    quire serve --config settings.json          # {"max-num-seqs": 64}

A flag wins over the environment, and the environment over the file. `config/quire.json` is such a
file, with all defaults and explanations; a member with a name that begins with `#` is a comment.
Bytes are a number, or one with K, M or G. Tokens are a number, or one with k, m or g by 1000
(`32k`, `25.6k`), or K, M or G by 1024 (`32K`), as in vLLM. A true-or-false flag may stand alone
(`--batch-invariant`), or be negated (`--no-enable-prefix-caching`). In a flag `_` is `-`. These
commands take the settings, too: `quire run`, `chat`, `bench`, `tune`, `info`, `quantize`, `tokenize`, `health` and
`doctor`.
"""


def read_groups(text):
    """Yields (title, example, text) of each group that --help-all lists."""
    parts = re.split(r"^(.+) \(--help \w+\), such as\n\n  (.+)\n", text, flags=re.MULTILINE)
    yield from zip(parts[1::3], parts[2::3], parts[3::3])


def read_options(text):
    """Yields (name, kind, help, default or None) of each option of a group."""
    for name, kind, words in re.findall(r"^  --(\S+) (.+)\n        (.+)$", text, re.MULTILINE):
        help_text, _, default = words.rpartition(" [")
        yield (name, kind, help_text, default[:-1]) if help_text else (name, kind, words, None)


def format_default(default):
    """Values look like code; what only describes a value, such as "the directory's", does not."""
    if default is None:
        return "no default"
    is_words = "'" in default or (" " in default and not default.startswith("{"))
    return f"default: {default}" if is_words else f"default `{default}`"


def fold(text):
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def make_entry(option, explanations):
    name, kind, words, default = option
    variable = "QUIRE_" + name.upper().replace("-", "_")
    return (f"\n### `--{name} {kind}`\n\n`{variable}`, {format_default(default)}\n\n"
            + fold(f"*{words}*") + "\n\n" + fold(explanations["# " + name]) + "\n")


def by_name(spelling):
    return spelling.lstrip("-").lower(), spelling


def in_cell(text):
    return text.replace("|", "\\|")


def of_each(spellings):
    """Yields each spelling with its row, in the order of the names."""
    yield from sorted(((word, one) for one in spellings for word in one["spellings"]), key=lambda each: by_name(each[0]))


def make_renamed(spellings):
    lines = ["| option | of | is |\n| --- | --- | --- |\n"]
    for word, one in of_each(spellings):
        if "option" in one:
            lines.append(f"| `{word}` | {one['of']} | `--{one['option']}` |\n")
    return "".join(lines)


def make_usual(usual):
    """The table of options that are taken, as they ask for what is so anyhow."""
    def values(said):
        words = ["alone"] * (not said.strip(",") or said.startswith(",")) + \
            ["with any value" if word == "*" else f"`{word}`" for word in said.split(",") if word]
        return ", ".join(words)
    lines = ["| option | taken |\n| --- | --- |\n"]
    lines += [f"| `{word}` | {in_cell(values(usual[word]))} |\n" for word in sorted(usual, key=by_name)]
    return "".join(lines)


def make_refused(spellings):
    lines = ["| option | of | the error says |\n| --- | --- | --- |\n"]
    for word, one in of_each(spellings):
        if "option" not in one:
            lines.append(f"| `{word}` | {one['of']} | {in_cell(one['instead'])} |\n")
    return "".join(lines)


def make_values(values):
    """The table of values that other servers spell otherwise."""
    lines = ["| option and value | is |\n| --- | --- |\n"]
    for one in sorted(values, key=lambda each: (each["option"], each["theirs"])):
        here = f"`--{one['option']} {one['ours']}`" if "ours" in one else f"an error: {in_cell(one['instead'])}"
        lines.append(f"| `--{one['option']} {one['theirs']}` | {here} |\n")
    return "".join(lines)


def make_foreign(tables):
    """The options of other servers, by what happens to them."""
    return f"""
## Options of other servers

What happens to an option of vLLM, SGLang, llama.cpp, TensorRT-LLM, TGI or Ollama, in order of the names. Options that have
the same name here are above. A name that is in no table is an error, which names the option that is likeliest meant.

### Taken: another name of a setting

{make_renamed(tables["spellings"])}
### Taken: it asks for what quire does anyhow

Only so; a line of the log names it. With another value it is an error, as [below](#refused-the-server-does-not-start) where it is listed.

{make_usual(tables["usual"])}
### Refused: the server does not start

{make_refused(tables["spellings"])}
### Values that other servers spell otherwise

{make_values(tables["values"])}"""


def make_page(help_text, explanations, tables):
    lines = [HEAD]
    for title, example, text in read_groups(help_text):
        lines.append(f"\n## {title}\n\n    {example}\n")
        lines += [make_entry(option, explanations) for option in read_options(text)]
    return "".join(lines) + make_foreign(tables)


def main():
    arguments = [word for word in sys.argv[1:] if word != "--check"]
    binary = arguments[0] if arguments else ROOT / "build/quire"
    shown = subprocess.run([binary, "serve", "--help-all"], check=True, capture_output=True, text=True)
    tables = subprocess.run([binary, "help", "--json"], check=True, capture_output=True, text=True)
    page = make_page(shown.stdout, json.loads((ROOT / "config/quire.json").read_text()),
                     json.loads(tables.stdout))
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page:
        sys.exit(f"{PAGE} is out of date: run scripts/ci/make_settings_doc.py")


if __name__ == "__main__":
    main()
