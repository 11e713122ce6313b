"""The chat format: one template, for training and for servers.

ChatML behind the BOS token.  Tools stand in the system turn, calls and their results between marks
that are tokens of their own.  TEMPLATE is what tokenizer_config.json gives to servers; render()
writes the same text in pieces, with the loss on what the assistant says.  The smoke test holds the
two together.
"""
import json

from tasks.sample import BOS, TURN, TURN_END, Loss, Sample

TEMPLATE = """\
{{- bos_token }}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] + '\\n\\n' }}
    {%- endif %}
    {{- 'You can call these tools:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + '\\n' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>' + message['content'] }}
        {{- '</tool_response><|im_end|>\\n' }}
    {%- elif message['role'] == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + (message['content'] or '') }}
        {%- for call in message['tool_calls'] or [] %}
            {{- '<tool_call>{"name": ' + call['function']['name'] | tojson }}
            {{- ', "arguments": ' + call['function']['arguments'] | tojson + '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message['role'] != 'system' or not loop.first %}
        {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
SYSTEM_PROMPTS = [
    "You are a helpful assistant.", "You are a helpful assistant. Answer briefly.",
    "Answer the question with what the text says.", "You answer questions about texts."]


def turn(sample, role, pieces):
    """One turn; what the assistant says, its end included, is what is learned."""
    loss = Loss.ANSWER if role == "assistant" else Loss.PROMPT
    sample.add(f"{TURN}{role}\n", Loss.PROMPT)
    sample.extend(pieces)
    sample.add(TURN_END, loss)
    return sample.add("\n", Loss.PROMPT)


def tools_text(tools):
    return "You can call these tools:\n" + "".join(json.dumps(tool) + "\n" for tool in tools)


def call_text(call):
    function = {key: call["function"][key] for key in ("name", "arguments")}
    return f"<tool_call>{json.dumps(function)}</tool_call>"


def begin(system, tools=None):
    sample = Sample().add(BOS, Loss.NONE)
    if tools:
        text = (system + "\n\n" if system else "") + tools_text(tools)
        return turn(sample, "system", [(text, Loss.PROMPT)])
    return turn(sample, "system", [(system, Loss.PROMPT)]) if system else sample


def render(messages, tools=None):
    """The sample of a conversation, as TEMPLATE writes it."""
    first = messages[0]
    system = first["content"] if first["role"] == "system" else ""
    sample = begin(system, tools)
    for message in messages[1 if system else 0:]:
        role, text = message["role"], message["content"]
        if role == "tool":
            role, text = "user", f"<tool_response>{text}</tool_response>"
        text += "".join(map(call_text, message.get("tool_calls", [])))
        turn(sample, role, [(text, Loss.ANSWER if role == "assistant" else Loss.PROMPT)])
    return sample
