"""conversations.py - conversations that published templates tell apart: roles, tools, reasoning."""
import itertools

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": 'Get "the" weather <b>é</b>\nin a city',
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "City's name", "enum": ["a", "b"]},
            "n": {"type": ["integer", "null"], "default": 3},
            "deep": {"type": "object", "properties": {
                "x": {"type": "array", "items": {"type": "number"}}}}}},
        "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "noop", "description": "",
                                      "parameters": {"type": "object", "properties": {}}}},
]

# Types of one name each, and an array: some templates write a tool's signature from them.
PLAIN_TOOLS = [
    {"type": "function", "function": {
        "name": "add", "description": "Adds <b>é</b>", "parameters": {
            "type": "object", "required": ["terms"], "properties": {
                "terms": {"type": "array", "description": "All", "items": {"type": "number"}},
                "unit": {"type": "string", "description": "Its unit"},
                "options": {"type": "object", "description": "More",
                            "additionalProperties": {"type": "string"}}}}}},
]

SYSTEM = {"role": "system", "content": " You are X.\n"}
USER = {"role": "user", "content": "Hi <|im_end|> there & 日本 😀"}
ASSISTANT = {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nHello!\n"}


def call(arguments, content=None, name="get_weather", number="call_12345"):
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": content,
            "tool_calls": [{"id": number, "type": "function", "function": function}]}


def result(content, number="call_12345"):
    return {"role": "tool", "content": content, "name": "get_weather", "tool_call_id": number}


CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [USER, ASSISTANT, USER],
    [SYSTEM, USER, ASSISTANT, USER],
    [SYSTEM, USER, ASSISTANT, USER, ASSISTANT],
    [USER, call({"city": "Paris", "n": 1.5, "deep": {"x": [1, 2]}}), result('{"t": 3}'), ASSISTANT,
     USER],
    [SYSTEM, USER, call({"city": "x"}), result("sun")],
    [USER, call('{"city": "Paris"}'), result("1"), USER],
    [USER, {**call({"a": 1}, number="123456789"), "tool_calls": [
        call({"a": 1}, name="f", number="123456789")["tool_calls"][0],
        call({}, name="g", number="12345678a")["tool_calls"][0]]},
     result({"a": [1, None, True]}, "123456789"), result("y", "12345678a"),
     {"role": "assistant", "content": "done", "reasoning_content": "because", "thinking": "t"}, USER],
    [{"role": "user", "content": [{"type": "text", "text": "parts "},
                                  {"type": "text", "text": "here"}]}],
    [{"role": "developer", "content": "dev"}, USER],
    [USER, USER],
    [ASSISTANT],
    [],
    [{"role": "weird", "content": "x"}],
    [SYSTEM, USER, {"role": "assistant", "content": "", "reasoning_content": "I think"}, USER,
     {"role": "assistant", "content": "x", "thinking": "hm"}],
]

MORE = [
    {},
    {"enable_thinking": False},
    {"enable_thinking": True, "reasoning_effort": "high", "date_string": "1 Jan 2020"},
    {"builtin_tools": ["browser", "python"], "documents": [{"title": "t", "text": "d"}],
     "xml_tools": TOOLS, "thinking": True},
]

TRUSTED = {"bos_token": "<s>", "eos_token": "</s>"}


def all_variables():
    """Every conversation with and without tools, a prompt for generation, and other variables."""
    for messages, tools, prompt, more in itertools.product(
            CONVERSATIONS, (None, TOOLS, PLAIN_TOOLS), (False, True), MORE):
        yield {"messages": messages, "tools": tools, "documents": None,
               "add_generation_prompt": prompt, **more}
