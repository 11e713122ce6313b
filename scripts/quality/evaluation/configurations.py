"""Configurations: named sets of extra request fields, and what a server made of them.

    confirmed    the answers' usage says so: usage.kv.policy for kv_policy, usage.prefill.mode for
                 prefill
    without effect
                 the usage says so, and that it left nothing out of whatever was scored
    refused      the server answered 4xx
    ignored      nothing mentions the fields, and every answer is the baseline's; or the usage says
                 that something else was done
    unconfirmed  nothing mentions the fields, but answers differ (or there are none to compare)
"""
import json

from . import effects

# The worst verdict of its fields is the configuration's.
WORST_FIRST = ("ignored", "unconfirmed", "without effect", "confirmed")
# Where usage says what became of a field.
REPORTED = {"kv_policy": ("kv", "policy"), "prefill": ("prefill", "mode")}


def parse(text):
    """`NAME={"field": ...}` as (name, fields)."""
    name, equals, fields = text.partition("=")
    try:
        fields = json.loads(fields)
    except ValueError:
        fields = None
    if not name or not equals or not isinstance(fields, dict):
        raise ValueError(f"{text!r} is not NAME={{JSON object}}")
    return name, fields


def parse_all(texts):
    configs = dict(parse(text) for text in texts or ["default={}"])
    if len(configs) < len(texts or []):
        raise ValueError("two configurations have the same name")
    return configs


def wanted_name(value):
    """What the usage should say: "streaming" of {"type": "streaming", ...} and of "streaming"."""
    if isinstance(value, dict):
        return value.get("type", value.get("mode"))
    return value


def reported(usage, field):
    part, name = REPORTED.get(field, (field, None))
    value = (usage or {}).get(part)
    return value.get(name) if name and isinstance(value, dict) else value


def judge_field(field, value, usages):
    """A verdict from the usage alone; None when no usage mentions the field."""
    found = [reported(usage, field) for usage in usages]
    said = {json.dumps(value) for value in found if value is not None}
    if not said:
        return None
    if said == {json.dumps(wanted_name(value))}:
        return "confirmed", f"usage names {' '.join(said)} for {field}"
    return "ignored", f"usage names {' '.join(sorted(said))} for {field}, not what was asked for"


def outcome(record):
    return record.get("answer"), record.get("nll"), record["error"] is None


def compare(ours, baseline):
    """(how many records both have, how many of them are equal)."""
    n_both = n_equal = 0
    for unit, questions in ours.items():
        kind, _, *rest = unit
        for question, record in questions.items():
            other = baseline.get((kind, *rest), {}).get(question)
            if other:
                n_both += 1
                n_equal += outcome(record) == outcome(other)
    return n_both, n_equal


def judge(name, fields, records, baseline):
    """The verdict line of a configuration that was asked; baseline: the first one's name."""
    ours = records.of(name)
    usages = [r.get("usage") for questions in ours.values() for r in questions.values()]
    verdicts = {field: judge_field(field, value, usages) for field, value in fields.items()}
    for field, verdict in verdicts.items():
        if verdict and verdict[0] == "confirmed" and (why := without_effect(field, ours)):
            verdicts[field] = "without effect", why
    silent = [field for field, verdict in verdicts.items() if verdict is None]
    if silent:
        others = {(u[0], *u[2:]): q for u, q in records.of(baseline).items()}
        n_both, n_equal = compare(ours, others)
        why = (f"nothing in the answers mentions {', '.join(silent)}; {n_equal} of {n_both} "
               f"answers equal those of {baseline}")
        verdict = "ignored" if 0 < n_both == n_equal else "unconfirmed"
        verdicts.update((field, (verdict, why)) for field in silent)
    worst = min(verdicts.values(), key=lambda verdict: WORST_FIRST.index(verdict[0]))
    return line(name, fields, *worst)


def without_effect(field, ours):
    """Why a field did nothing in any of the records; None if it did something in one, or if nothing
    is known."""
    found = [r.get("effect", {}).get(field) for questions in ours.values()
             for r in questions.values()]
    finding = effects.judge(found)
    return finding.why if finding and finding.is_void else None


def line(name, fields, verdict, why):
    return {"kind": "ignored", "config": name, "fields": sorted(fields), "verdict": verdict,
            "why": why}
