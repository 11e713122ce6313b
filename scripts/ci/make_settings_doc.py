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


def make_usual(usual):
    """The sentence on options that are taken, as they ask for what is so anyhow."""
    def words(spelling, values):
        said = values.strip(",").replace(",", "|")
        if values.startswith(","):
            said = f"[{said}]"
        return f"`{spelling} {said}`".replace(" `", "`").replace(" *`", " ANY`")
    listed = ", ".join(words(*one) for one in usual.items())
    text = f"Some ask for what quire does anyhow. They are taken, and a line of the log names them: {listed}."
    return "\n" + textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def make_spellings(spellings):
    """The table of other servers' options."""
    lines = ["\n## Options of other servers\n\nWhat is understood here, or named in an error that says this. A name in code is what is set instead:\n\n"
             "| option | of | here |\n| --- | --- | --- |\n"]
    for one in spellings:
        words = ", ".join(f"`{spelling}`" for spelling in one["spellings"])
        here = f"`--{one['option']}`" if "option" in one else one["instead"].replace("|", "\\|")
        lines.append(f"| {words} | {one['of']} | {here} |\n")
    return "".join(lines)


def make_values(values):
    """The sentence on values that other servers spell otherwise."""
    listed = ", ".join(f"`--{one['option']} {one['theirs']}` is `{one['ours']}`" for one in values if "ours" in one)
    text = f"Values that other servers spell otherwise: {listed}."
    reasons = dict.fromkeys(one["instead"] for one in values if "instead" in one)
    for why in reasons:
        names = ", ".join(f"`--{one['option']} {one['theirs']}`" for one in values if one.get("instead") == why)
        text += f" {names}: an error that says this: {why}."
    return "\n" + textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def make_page(help_text, explanations, tables):
    lines = [HEAD]
    for title, example, text in read_groups(help_text):
        lines.append(f"\n## {title}\n\n    {example}\n")
        lines += [make_entry(option, explanations) for option in read_options(text)]
    return "".join(lines) + make_spellings(tables["spellings"]) + make_usual(tables["usual"]) + \
        make_values(tables["values"])


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
