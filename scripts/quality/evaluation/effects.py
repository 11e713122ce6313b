"""effects.py - whether what a configuration asks for had an effect on what was scored.

A perplexity says nothing of a budget when nothing was evicted before the last token that was
scored, nor when the scored tokens saw far more than the budget.  A server evicts from a prompt
after every chunk of Q tokens, so the token at position i of a prompt sees, under a budget of C,

    min(C, i - i % Q) + i % Q + 1 tokens, and there was an eviction before it when i - i % Q > C.

usage.kv alone does not tell: a prompt is also cut down at its end, behind everything in it.  Of an
answer that comes behind a prompt the budget counts when the prompt is longer than it, and what
counts as visible is what the prompt's last token saw, which the question ends with.

Windows that are exactly as likely as under the first configuration are void whatever a server says
(results.py).

A record keeps for each field that was asked for (`kv_policy`, `prefill`)

    scored    tokens of a window; 1 for an answer
    behind    those of them that the field had an effect on; null: not known
    visible   tokens that those saw on average; null where nothing bounds it
    budget    of the policy, chunk: of its prompts ("whole": pruned once, at the prompt's end)

and nothing where the server's usage says nothing.
"""
import dataclasses

LARGEST_VISIBLE = 1.25  # times the budget
LEAST_BEHIND = 0.5  # of what was scored
WHOLE = "whole"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Why a number does not measure what its configuration asks for.  is_void: not at all."""
    is_void: bool
    why: str


def policy_of(fields, defaults):
    """The kv_policy of request fields with what the server adds to it; None without one.
    defaults: the server's policies by type."""
    policy = fields.get("kv_policy")
    policy = {"type": policy} if isinstance(policy, str) else policy
    if not isinstance(policy, dict):
        return None
    return {**defaults.get(policy.get("type"), {}), **policy}


def chunk_of(policy):
    """Tokens between two evictions from a prompt; WHOLE; None: not known."""
    return WHOLE if policy.get("prompt") == WHOLE else policy.get("chunk")


def budget_of(policy, n_prompt):
    """Tokens that a policy keeps of a prompt; None where it has no parts that bound it."""
    if policy.get("type") == "offload":
        return None
    parts = [policy.get(name) for name in ("sink", "recent", "heavy")]
    known = [part for part in parts if type(part) in (int, float)]
    return sum(max(1, round(part * n_prompt)) if type(part) is float else part
               for part in known) or None


def before_row(chunk, n_prompt, row):
    """How many tokens had been read when the last eviction before a row of the prompt was due."""
    return 0 if chunk == WHOLE else row - row % chunk


def rows_of_prompt(budget, chunk, n_rows):
    """(how many of the first rows come behind an eviction, how many tokens they see on average)."""
    step = n_rows if chunk == WHOLE else chunk
    behind = visible = 0
    for begin in range(0, n_rows, step):
        n = min(step, n_rows - begin)
        if begin > budget:
            behind += n
            visible += n * budget + n * (n + 1) // 2
    return behind, visible / behind if behind else None


def of_window(policy, kv, n_tokens):
    """Every token but the first is scored, by the row before it.  kv: usage.kv."""
    n_scored, chunk = n_tokens - 1, chunk_of(policy)
    if policy.get("type") == "offload":
        # A prompt is read with everything visible, whatever its answer would see.
        return effect(n_scored, 0)
    budget = kv.get("budget_tokens")
    if budget is None or kv.get("evicted_tokens") is None:
        return None
    if chunk is None:
        return effect(n_scored, None, None, budget)
    behind, visible = rows_of_prompt(budget, chunk, n_scored)
    if not kv["evicted_tokens"]:
        behind, visible = 0, None
    return effect(n_scored, behind, visible, budget, chunk)


def of_answer(policy, kv, n_prompt):
    """An answer behind a prompt."""
    if policy.get("type") == "offload":
        n_selected = kv.get("selected_tokens")
        return None if n_selected is None else effect(1, int(n_selected > 0))
    budget, chunk = kv.get("budget_tokens"), chunk_of(policy)
    if budget is None or kv.get("evicted_tokens") is None:
        return None
    behind = int(n_prompt > budget and kv["evicted_tokens"] > 0)
    if chunk is None:
        return effect(1, behind and None, None, budget)
    last, visible = n_prompt - 1, None
    if behind and chunk != WHOLE:
        read = last - last % chunk
        visible = min(budget, read) + last - read + 1
    return effect(1, behind, visible, budget, chunk)


def of_prefill(prefill, was_cached, earlier):
    """A prompt that was to be read sparsely.  earlier: the effect on the prompt that this one goes
    on from, whose blocks were found in the prefix cache."""
    if prefill.get("density") is None:
        return None
    is_sparse = prefill.get("mode") == "sparse" and prefill["density"] < 1
    return effect(1, int(is_sparse or bool(was_cached and earlier and earlier["behind"])))


def effect(scored, behind, visible=None, budget=None, chunk=None):
    return {"scored": scored, "behind": behind, "visible": visible, "budget": budget,
            "chunk": chunk}


def foresee(policy, n_tokens):
    """A Finding when windows of so many tokens cannot have an effect, as far as can be told from
    the policy alone; else None."""
    budget = budget_of(policy, n_tokens)
    if policy.get("type") != "offload" and (budget is None or chunk_of(policy) is None):
        return None
    kv = {"budget_tokens": budget, "evicted_tokens": max(0, n_tokens - (budget or 0))}
    finding = judge([of_window(policy, kv, n_tokens)])
    return finding if finding and finding.is_void else None


def asks_for_less(field, value):
    """Whether a field is to have an effect: `full` and `dense` have none to show."""
    if field == "kv_policy":
        return (value.get("type") if isinstance(value, dict) else value) != "full"
    if field == "prefill":
        return (value.get("mode") if isinstance(value, dict) else value) != "dense"
    return False


def judge(effects):
    """A Finding about the records of one row under one field, or None.  A stream begins with
    nothing that could be evicted: see judge_stream."""
    known = [e for e in effects if e]
    if not known:
        return None
    if any(e["behind"] is None for e in known):
        return Finding(False, "how much was visible is not known: name `chunk` in the "
                              "configuration")
    return nothing(known) or too_few(known) or too_much(known)


def judge_stream(effects):
    known = [e for e in effects if e and e["behind"] is not None]
    return (nothing(known) or too_much(known)) if known else None


def nothing(known):
    if any(e["behind"] for e in known):
        return None
    if budget_text(known):
        return Finding(True, f"nothing was evicted before what was scored{budget_text(known)}")
    return Finding(True, "nothing was left out of what was scored: all of the text was selected, "
                         "visited, or found in the prefix cache")


def too_few(known):
    share = behind_share(known)
    if share >= LEAST_BEHIND:
        return None
    what = "behind an eviction" if budget_text(known) else "with something left out"
    return Finding(False, f"only {share:.0%} of what was scored came {what}{budget_text(known)}")


def too_much(known):
    ratio = visible_ratio(known)
    if ratio is None or ratio <= LARGEST_VISIBLE:
        return None
    return Finding(False, f"what was scored saw {ratio:.2f} times the budget{budget_text(known)}")


def behind_share(known):
    return sum(e["behind"] for e in known) / sum(e["scored"] for e in known)


def visible_ratio(known):
    """Tokens seen behind evictions over the budget, on average; None where it is not bounded."""
    seen = [e for e in known if e["visible"] is not None and e["behind"]]
    if not seen:
        return None
    return (sum(e["visible"] / e["budget"] * e["behind"] for e in seen)
            / sum(e["behind"] for e in seen))


def ends(values):
    """"256", "100 to 400"; equal ends are one."""
    return " to ".join(dict.fromkeys(f"{v:,}" for v in (min(values), max(values))))


def budget_text(known):
    budgets = [e["budget"] for e in known if e["budget"]]
    if not budgets:
        return ""
    return f" (budget {ends(budgets)}, {chunk_text(known)})"


def chunk_text(known):
    chunks = {e["chunk"] for e in known if e["chunk"] is not None}
    if WHOLE in chunks:
        return "prompts read whole"
    return f"chunk {ends(chunks)}" if chunks else "chunk not known"
