#!/usr/bin/env python3
"""Writes the manual page or a shell's completion, from what `quire help --json` prints.

    server/manual/make_manual.py help.json config/quire.json OUT

OUT's name says which: quire.1, quire (bash), _quire (zsh) or quire.fish.  config/quire.json has the
explanations of the settings."""
import json
import pathlib
import sys

KINDS = {"text": "TEXT", "list": "TEXT,...", "number": "N", "tokens": "TOKENS", "bytes": "BYTES", "fraction": "X", "bool": "true|false"}
INTRODUCTION = """\
quire serves language models over the HTTP APIs of OpenAI and Anthropic, on an NVIDIA GPU where there \
is one, and on the CPU elsewhere.  It is made for long texts: it can bound, move, store and skip parts \
of the KV cache, and says with each answer what was left out.

MODEL is a folder as the Hugging Face hub has it, a GGUF file, or a name of the hub: OWNER/NAME, \
OWNER/NAME@REVISION, or hf:OWNER/NAME:QUANT for one of its GGUF files.  A model of the hub is fetched \
into its cache.  Without MODEL the default model is used, which comes with quire.

Each setting is read from a flag, from the environment (--max-num-seqs: QUIRE_MAX_NUM_SEQS) and from \
the JSON file that --config names (\\(dqmax-num-seqs\\(dq).  A flag wins over the environment, and the \
environment over the file.  A bool may stand alone, or be negated (--no-ui)."""
FILES = [
    ("/etc/quire/quire.json", "The settings of the system's service, where the Debian package is installed."),
    ("/etc/quire/environment", "Variables of that service, such as QUIRE_API_KEY; it need not exist."),
    ("../share/quire, seen from the program", "The default model, and what is known of other models."),
]
STATUS = [("0", "Done, or stopped by a signal."), ("1", "Failed."), ("2", "Called wrongly.")]
ENVIRONMENT = [
    ("QUIRE_*", "A setting each, as above."),
    ("HF_HUB_CACHE", "The cache of the hub's models.  Without it: hub in HF_HOME."),
    ("HF_HOME", "The folder of cache and token.  Without it: .cache/huggingface in the home folder."),
    ("HF_TOKEN, HF_TOKEN_PATH", "A token for private and gated models, or its file."),
    ("HF_ENDPOINT", "A mirror of the hub."),
    ("HF_HUB_OFFLINE", "1: nothing is fetched, as with --offline."),
]
SIGNALS = [("SIGTERM, SIGINT", "Take no more requests, let those that run finish, end.  A second one ends at once."),
           ("SIGHUP", "Read certificates and API keys again.")]


def value_of(option):
    """What stands for the option's value."""
    return "|".join(option["words"]) if "words" in option else KINDS[option["kind"]]


def roff(text):
    """The text as a line of roff: no character of it is a command."""
    text = text.replace("\\(dq", "\0").replace("\\", "\\e").replace("-", "\\-").replace("\0", '"')
    return "\\&" + text if text[:1] in (".", "'") else text


def paragraph(text):
    return "".join(f"{'.PP' + chr(10) if i else ''}{roff(part.replace(chr(10), ' '))}\n"
                   for i, part in enumerate(text.split("\n\n")))


def roff_options(options, explanations):
    for option in options:
        value = roff(value_of(option)).replace("|", "|\\:")  # a line may end there
        yield f".TP\n\\fB\\-\\-{roff(option['name'])}\\fR \\fI{value}\\fR\n"
        default = f" (default: {option['default']})" if "default" in option else ""
        yield roff(option["help"] + default) + "\n"
        if "# " + option["name"] in explanations:
            yield f".IP\n{roff(explanations['# ' + option['name']])}\n"


def roff_list(rows):
    return "".join(f".TP\n{roff(name)}\n{roff(text)}\n" for name, text in rows)


def manual(told, explanations):
    """quire.1."""
    yield f'.TH QUIRE 1 "" "quire {told["version"]}" "User Commands"\n'
    yield ".nh\n.ad l\n.SH NAME\nquire \\- inference server for language models and long texts\n.SH SYNOPSIS\n"
    yield ".br\n".join(f"\\fBquire {command['name']}\\fR {roff(command['arguments'])}\n"
                       for command in told["commands"])
    yield ".SH DESCRIPTION\n" + paragraph(INTRODUCTION) + ".SH COMMANDS\n"
    for command in told["commands"]:
        also = "  It takes the settings, too." if command["takes_settings"] and command["options"] else ""
        yield f".SS {command['name']} {roff(command['arguments'])}\n{roff(command['help'] + '.' + also)}\n"
        yield from roff_options(command["options"], {})
    yield ".SH SETTINGS\n"
    settings = {option["name"]: option for option in told["settings"]}
    for group in told["groups"]:
        yield f".SS {roff(group['title'])}\nExample: \\fB{roff(group['example'])}\\fR\n"
        yield from roff_options([settings[name] for name in group["options"]], explanations)
    yield ".SH ENVIRONMENT\n" + roff_list(ENVIRONMENT)
    yield ".SH FILES\n" + roff_list(FILES) + ".SH SIGNALS\n" + roff_list(SIGNALS)
    yield ".SH EXIT STATUS\n" + roff_list(STATUS)
    yield ".SH EXAMPLES\n.nf\nquire serve\nquire serve /path/to/model \\-\\-port 9000\n"
    yield "curl http://127.0.0.1:8000/v1/chat/completions \\-H \\(aqContent\\-Type: application/json\\(aq \\e\n"
    yield "    \\-d \\(aq{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}\\(aq\n.fi\n"


def options_of(told, command):
    return command["options"] + (told["settings"] if command["takes_settings"] else [])


def flags_of(option):
    """The forms in which the option is written."""
    names = [option["name"]] + (["no-" + option["name"]] if option["kind"] == "bool" else [])
    return ["--" + name for name in names]


def quoted(text):
    """The text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def bash(told, _):
    yield "# bash completion for quire, written by server/manual/make_manual.py\n_quire() {\n"
    yield "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
    yield "    COMPREPLY=()\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words="
    yield quoted(" ".join(command["name"] for command in told["commands"])) + "\n"
    yield "    else\n        case ${COMP_WORDS[1]}:$before in\n"
    for command in told["commands"]:
        for option in options_of(told, command):
            if option["kind"] == "choice":
                yield f"        {command['name']}:--{option['name']}) words={quoted(' '.join(option['words']))} ;;\n"
        names = {kind: [f"{command['name']}:--{one['name']}" for one in options_of(told, command) if one["kind"] == kind]
                 for kind in ("text", "list", "number", "tokens", "bytes", "fraction")}
        others = names["list"] + names["number"] + names["tokens"] + names["bytes"] + names["fraction"]
        if names["text"]:
            yield f"        {' | '.join(names['text'])})\n            mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
            yield "            compopt -o filenames 2>/dev/null\n            return ;;\n"
        if others:
            yield f"        {' | '.join(others)}) return ;;\n"
    yield "        *)\n            case ${COMP_WORDS[1]} in\n"
    for command in told["commands"]:
        flags = [flag for option in options_of(told, command) for flag in flags_of(option)]
        yield f"            {command['name']}) words={quoted(' '.join(flags))} ;;\n"
    yield "            esac\n            if [[ $word != -* ]]; then\n"
    yield "                mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
    yield "                compopt -o filenames 2>/dev/null\n                return\n            fi ;;\n"
    yield "        esac\n    fi\n    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n}\n"
    yield "complete -F _quire quire\n"


def zsh_option(option):
    """The words by which _arguments knows the option."""
    about = option["help"].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    if option["kind"] == "bool":
        return [f"{flag}[{about}]" for flag in flags_of(option)]
    action = {"text": "_files", "choice": f"({' '.join(option.get('words', []))})"}.get(option["kind"], " ")
    kind = value_of(option).replace("|", " or ") if option["kind"] != "choice" else option["name"]
    return [f"--{option['name']}[{about}]:{kind}:{action}"]


def zsh(told, _):
    yield "#compdef quire\n# zsh completion for quire, written by server/manual/make_manual.py\n\n"
    yield "_quire() {\n    local -a commands settings\n    commands=(\n"
    for command in told["commands"]:
        yield "        " + quoted(command["name"] + ":" + command["help"].replace(":", "\\:")) + "\n"
    yield "    )\n    settings=(\n"
    for option in told["settings"]:
        yield "".join(f"        {quoted(word)}\n" for word in zsh_option(option))
    yield "    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n"
    yield "    local name=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $name in\n"
    for command in told["commands"]:
        own = [word for option in command["options"] for word in zsh_option(option)]
        words = " \\\n            ".join(map(quoted, own))
        words = "'*:MODEL:_files'" + (" \\\n            " + words if own else "")
        words += " \\\n            $settings" if command["takes_settings"] else ""
        yield f"    {command['name']})\n        _arguments {words}\n        ;;\n"
    yield "    esac\n}\n\n_quire \"$@\"\n"


def fish_options(options, condition):
    for option in options:
        value = {"bool": "", "text": " -r -F", "choice": f" -x -a {quoted(' '.join(option.get('words', [])))}"}
        for flag in flags_of(option):
            yield (f"complete -c quire -n {quoted(condition)} -l {flag[2:]}{value.get(option['kind'], ' -x')} "
                   f"-d {quoted(option['help'])}\n")


def fish(told, _):
    yield "# fish completion for quire, written by server/manual/make_manual.py\n"
    for command in told["commands"]:
        yield (f"complete -c quire -f -n __fish_use_subcommand -a {command['name']} "
               f"-d {quoted(command['help'])}\n")
        yield from fish_options(command["options"], f"__fish_seen_subcommand_from {command['name']}")
    takers = " ".join(command["name"] for command in told["commands"] if command["takes_settings"])
    yield from fish_options(told["settings"], f"__fish_seen_subcommand_from {takers}")


WRITERS = {"quire.1": manual, "quire": bash, "_quire": zsh, "quire.fish": fish}


def main():
    told, explanations = (json.loads(pathlib.Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:3])
    out = pathlib.Path(sys.argv[3])
    out.write_text("".join(WRITERS[out.name](told, explanations)), encoding="utf-8")


if __name__ == "__main__":
    main()
