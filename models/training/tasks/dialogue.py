"""Puts an exercise into the words of a dialogue: chat or plain text, question before or behind the
context, the context in the system turn or the user's."""
import chat

from .sample import BOS, EOT, Loss, Sample

SHARES = {"question first": 0.22, "plain": 0.2, "system prompt": 0.15, "text in system": 0.06,
          "asked again": 0.3}
PLAIN_FORMS = [("Question: ", "\nAnswer:"), ("Q: ", "\nA:"), ("", "\nAnswer:"), ("", "\n"),
               ("### Question\n", "\n### Answer\n")]


def ends_line(pieces):
    return not pieces or pieces[-1][0].endswith("\n")


def context_pieces(exercise):
    pieces = [(exercise.intro, Loss.PROMPT)] if exercise.intro else []
    pieces += exercise.context
    if pieces and not ends_line(pieces):
        pieces.append(("\n", Loss.PROMPT))
    return pieces


def plain(job, exercise):
    """Completion, not chat."""
    before, after = job.rng.choice(PLAIN_FORMS)
    sample = Sample().add(BOS, Loss.NONE)
    turns, context = list(exercise.turns), context_pieces(exercise)
    if turns and exercise.can_ask_first and job.chance(SHARES["question first"]):
        question, answer = turns.pop(0)
        sample.add(f"{before}{question}\n\n", Loss.PROMPT).extend(context)
        sample.add(after.lstrip("\n"), Loss.PROMPT).add(gap(after) + answer, Loss.ANSWER)
        sample.add("\n", Loss.ANSWER)
    else:
        sample.extend(context)
    for question, answer in turns:
        sample.add(f"{before}{question}{after}", Loss.PROMPT)
        sample.add(f"{gap(after)}{answer}\n", Loss.ANSWER)
    return sample.add(EOT, Loss.ANSWER)


def gap(after):
    return " " if after.endswith(":") else ""


def user_turn(sample, pieces):
    return chat.turn(sample, "user", pieces)


def answer_turn(sample, answer):
    return chat.turn(sample, "assistant", [(answer, Loss.ANSWER)])


def first_turn(job, sample, exercise):
    """The turn with the context; returns the questions that are left."""
    turns, context = list(exercise.turns), context_pieces(exercise)
    if not context:
        return turns
    question, answer = turns[0]
    asked = [(question, Loss.PROMPT)]
    if exercise.can_ask_first and job.chance(SHARES["question first"]):
        again = [("\n" + question, Loss.PROMPT)] if job.chance(SHARES["asked again"]) else []
        pieces = [*asked, ("\n\n", Loss.PROMPT), *context, *again]
        if pieces[-1][0].endswith("\n"):
            pieces[-1] = (pieces[-1][0].rstrip("\n"), pieces[-1][1])
        user_turn(sample, pieces)
    else:
        user_turn(sample, context + asked)
    answer_turn(sample, answer)
    return turns[1:]


def render(job, exercise):
    """The sample of an exercise."""
    if not exercise.turns:
        return Sample().add(BOS, Loss.NONE).extend(context_pieces(exercise)).add(EOT, Loss.ANSWER)
    if exercise.context and job.chance(SHARES["plain"]):
        return plain(job, exercise)
    if exercise.context and job.chance(SHARES["text in system"]):
        sample = Sample().add(BOS, Loss.NONE)
        chat.turn(sample, "system", context_pieces(exercise))
        turns = exercise.turns
    else:
        has_prompt = job.chance(SHARES["system prompt"])
        sample = chat.begin(job.rng.choice(chat.SYSTEM_PROMPTS) if has_prompt else "")
        turns = first_turn(job, sample, exercise)
    for question, answer in turns:
        answer_turn(user_turn(sample, [(question, Loss.PROMPT)]), answer)
    return sample
