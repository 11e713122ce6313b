"""Chat: small talk, small questions and errands, over several turns; and calls of tools."""
import json
import pathlib

from repository import LISTS

from .sample import Loss
from .job import Exercise

NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
           " fifteen sixteen seventeen eighteen nineteen twenty").split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = ("January February March April May June July August September October November"
          " December").split()


def read_sections(path):
    """The sections of conversation.txt: name -> list of (left, right)."""
    sections, rows = {}, None
    for row in path.read_text(encoding="utf-8").splitlines():
        if row.startswith("["):
            rows = sections[row.strip("[]")] = []
        elif row and not row.startswith("#"):
            rows.append(tuple(row.split("|")))
    return sections


SECTIONS = read_sections(pathlib.Path(__file__).with_name("conversation.txt"))


def small_talk(job):
    return job.rng.choice(SECTIONS["small talk"])


def fact(job):
    return job.rng.choice(SECTIONS["facts"])


def capital(job):
    country, city = job.rng.choice(SECTIONS["capitals"])
    return job.choose((f"What is the capital of {country}?",
                       f"The capital of {country} is {city}."),
                      (f"Which country has {city} as its capital?",
                       f"{city} is the capital of {country}."))


def opposite(job):
    a, b = job.some(job.rng.choice(SECTIONS["opposites"]), 2)
    return f"What is the opposite of {a}?", f"The opposite of {a} is {b}."


def arithmetic(job):
    most = job.choose(20, 20, 99)
    a, b = job.rng.randint(0, most), job.rng.randint(0, most)
    if job.chance(0.3):
        a, b = max(a, b), min(a, b)
        return f"What is {a} - {b}?", f"{a} - {b} = {a - b}"
    return job.choose((f"What is {a} + {b}?", f"{a} + {b} = {a + b}"),
                      (f"{a} + {b} = ?", f"{a} + {b} = {a + b}"))


def calendar(job):
    names, what = job.choose((DAYS, "day"), (MONTHS, "month"))
    i = job.rng.randrange(len(names))
    after = names[(i + 1) % len(names)]
    return f"What {what} comes after {names[i]}?", f"The {what} after {names[i]} is {after}."


def larger(job):
    a, b = job.rng.sample(range(1000), 2)
    return (f"Which number is larger, {a} or {b}?", f"{max(a, b)} is larger than {min(a, b)}.")


def words(job, least, most):
    return [job.word_of(job.choose("nouns", "words")) for _ in range(job.rng.randint(least, most))]


def count_words(job):
    some = words(job, 2, 10)
    return (f"How many words are in this list: {', '.join(some)}?",
            f"There are {NUMBERS[len(some)]} words in the list.")


def first_or_last(job):
    some = words(job, 2, 12)
    which, at = job.choose(("first", 0), ("last", -1))
    return (f"What is the {which} word of this text: {' '.join(some)}",
            f"The {which} word is {some[at]}.")


def errand(job):
    """Something to be done with a few words."""
    some = words(job, 2, 10)
    text = " ".join(some)
    return job.choose(
        (f"Repeat this: {text}", text),
        (f"Write these words in reverse order: {', '.join(some[:6])}",
         ", ".join(reversed(some[:6]))),
        (f"Sort these words: {', '.join(some[:5])}", ", ".join(sorted(some[:5]))),
        (f"Write this in capital letters: {' '.join(some[:4])}", " ".join(some[:4]).upper()),
        (f"Spell the word {some[0]}.", "-".join(some[0])),
        (f"Make a list of these words: {', '.join(some[:6])}",
         "\n".join(f"- {word}" for word in some[:6])),
        (f"Write these words as a JSON list: {', '.join(some[:6])}", json.dumps(some[:6])))


def extraction(job):
    name, place, work = job.person(), job.word_of("cities"), job.word_of("jobs")
    sentence = f"{name} is {work} from {place}."
    return job.choose((f"Extract the name from this sentence: {sentence}", name),
                      (f"Which city is named in this sentence: {sentence}", place),
                      (f"What is the job of the person in this sentence: {sentence}", work))


SMALL = [small_talk, small_talk, small_talk, fact, fact, capital, opposite, arithmetic, calendar,
         larger, count_words, first_or_last, errand, errand, extraction]
INTRODUCTIONS = [("My name is {name}.", "Nice to meet you, {name}!", "What is my name?",
                  "Your name is {name}."),
                 ("I live in {city}.", "{city} is a fine place to live.", "Where do I live?",
                  "You live in {city}."),
                 ("My favourite colour is {colour}.", "{Colour} is a lovely colour.",
                  "What is my favourite colour?", "Your favourite colour is {colour}.")]


def remembered(job):
    """Something that is told in one turn and asked for in a later one."""
    colour = job.word_of("colours")
    values = {"name": job.word_of("names"), "city": job.word_of("cities"), "colour": colour,
              "Colour": colour.capitalize()}
    told, reply, asked, answer = (part.format(**values) for part in job.rng.choice(INTRODUCTIONS))
    return (told, reply), (asked, answer)


def conversation(job):
    """Turns until the budget is full."""
    turns, size, later = [], 0, []
    while size < job.n_tokens - 90 and len(turns) < 60:
        if later and job.chance(0.4):
            turns.append(later.pop())
        elif job.chance(0.12):
            turn, afterwards = remembered(job)
            turns.append(turn)
            if not any(afterwards[0] == asked for asked, _ in later + turns):
                later.append(afterwards)
        else:
            turns.append(job.rng.choice(SMALL)(job))
        size += (len(turns[-1][0]) + len(turns[-1][1])) / 3.4 + 10
        if job.chance(0.04):
            break
    return Exercise("", [], turns, can_ask_first=False)


def continuation(job):
    """A story that is begun and goes on."""
    text = " ".join(job.prose(job.n_tokens - 60).split())
    cut = text.find(" ", int(len(text) * job.rng.uniform(0.1, 0.5)))
    asked = job.choose("Continue this text:", "Go on with this story:", "What comes next?")
    return Exercise("", [], [(f"{asked}\n\n{text[:cut]}", text[cut:].strip())],
                    can_ask_first=False)


def tool(name, description, /, **parameters):
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    return {"type": "function", "function": {
        "name": name, "description": description,
        "parameters": {"type": "object", "properties": properties, "required": [*parameters]}}}


# A tool, what is asked, the arguments, what the tool answers, and what is said then.
TOOLS = [
    (tool("get_weather", "Tells the weather of a city.", city="string"),
     ["What is the weather in {city}?", "How is the weather in {city} today?"],
     {"city": "{city}"}, {"weather": "{weather}", "degrees": "{degrees:d}"},
     "It is {weather} in {city}, at {degrees} degrees."),
    (tool("get_time", "Tells the local time of a city.", city="string"),
     ["What time is it in {city}?", "Tell me the time in {city}."],
     {"city": "{city}"}, {"time": "{time}"}, "It is {time} in {city}."),
    (tool("read_register", "Reads the content of a line of the register.", line="string"),
     ["What is in line {thing} of the register?", "Look up line {thing}."],
     {"line": "{thing}"}, {"content": "{number}"}, "Line {thing} has the content {number}."),
    (tool("find_person", "Finds a person's city and job.", name="string"),
     ["Who is {person}?", "Find {person}."],
     {"name": "{person}"}, {"city": "{city}", "job": "{job}"},
     "{person} is {job} and lives in {city}."),
    (tool("send_message", "Sends a text to a person.", to="string", text="string"),
     ["Write to {name}: {words}", "Send {name} this message: {words}"],
     {"to": "{name}", "text": "{words}"}, {"status": "sent"}, "I have sent it to {name}."),
    (tool("set_timer", "Sets a timer.", minutes="integer"),
     ["Wake me in {minutes} minutes.", "Set a timer of {minutes} minutes."],
     {"minutes": "{minutes:d}"}, {"status": "set"}, "The timer is set to {minutes} minutes."),
    (tool("add", "Adds two numbers.", a="integer", b="integer"),
     ["What is {a} plus {b}?", "Add {a} and {b}."],
     {"a": "{a:d}", "b": "{b:d}"}, {"sum": "{sum:d}"}, "{a} plus {b} is {sum}."),
    (tool("search_books", "Searches the library.", query="string"),
     ["Find books about {noun}.", "Is there a book about {noun}?"],
     {"query": "{noun}"}, {"title": "The {adjective} {noun}", "author": "{person}"},
     "There is The {adjective} {noun} by {person}."),
]


def values_of(job):
    a, b = job.rng.randint(0, 9999), job.rng.randint(0, 9999)
    return {"city": job.word_of("cities"), "weather": job.choose("sunny", "cloudy", "rainy",
                                                                 "windy", "cold", "warm"),
            "degrees": job.rng.randint(-9, 35), "thing": job.thing(), "person": job.person(),
            "time": f"{job.rng.randint(0, 23)}:{job.rng.randint(0, 59):02d}", "a": a, "b": b,
            "number": job.digits(5), "job": job.word_of("jobs"), "name": job.word_of("names"),
            "words": " ".join(job.rng.choices(LISTS["words"], k=job.rng.randint(2, 7))),
            "sum": a + b,
            "minutes": job.rng.randint(1, 90), "noun": job.word_of("nouns"),
            "adjective": job.word_of("adjectives")}


def filled(template, values):
    """The template's strings with values; "{n:d}" alone stays a number."""
    return {key: values[text[1:-3]] if text.endswith(":d}") else text.format(**values)
            for key, text in template.items()}


ROUND_TOKENS = 130  # about what a call takes, with question, result and answer


def tool_messages(job):
    """(messages, tools) of a conversation in which a tool is called, or none is needed."""
    offered = job.some(TOOLS, job.rng.randint(1, 4))
    messages, room = [], job.n_tokens - len(json.dumps([tool for tool, *_ in offered])) / 3.4
    while not messages or (room > ROUND_TOKENS and job.chance(0.85)):
        room -= ROUND_TOKENS
        if job.chance(0.25):
            asked, answer = job.rng.choice(SMALL)(job)
            messages += [{"role": "user", "content": asked},
                         {"role": "assistant", "content": answer}]
            continue
        description, asks, arguments, result, says = job.rng.choice(offered)
        values = values_of(job)
        call = {"name": description["function"]["name"], "arguments": filled(arguments, values)}
        messages += [
            {"role": "user", "content": job.rng.choice(asks).format(**values)},
            {"role": "assistant", "content": "",
             "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "content": json.dumps(filled(result, values))},
            {"role": "assistant", "content": says.format(**values)}]
    return messages, [description for description, *_ in offered]


def long_turns(job):
    """Questions about a text, with small talk between them."""
    text = job.prose(job.n_tokens * 0.6)
    name, value = job.thing(), job.digits(5)
    context = [(text.strip() + "\n\n", Loss.TEXT), (f"The number of {name} is ", Loss.PROMPT),
               (value, Loss.NONE), (".\n", Loss.PROMPT)]
    turns = [("What is the number in the text?", f"The number of {name} is {value}.")]
    turns += [job.rng.choice(SMALL)(job) for _ in range(job.rng.randint(0, 3))]
    turns += [(f"Once more, what is the number of {name}?", f"It is {value}.")]
    return Exercise("", context, turns)
