"""Bodies of the kinds that two agents send, turn by turn: Codex of version 0.154 and later to /v1/responses,
and Claude Code of version 2.1.154 and later to /v1/messages.

They are written after public reports of servers that refused them.  Names and texts are made up; types,
members and their order in the conversation are those of the reports.  "/root" is how Codex names its first agent: no
path of a machine is in any of them."""

# ---- Codex ----

CODEX_HEADERS = {"Accept": "text/event-stream", "User-Agent": "codex_cli_rs/0.154.0 (Debian 13.0.0; x86_64) xterm",
                 "originator": "codex_cli_rs", "session_id": "0199a213-81c0-7800-8aa1-bbab2a035a53"}
GRAMMAR = 'start: "*** Begin Patch" /(.|\\n)*/ "*** End Patch"'


def function(name, **properties):
    return {"type": "function", "name": name, "description": f"Does {name}.", "strict": False, "parameters": {
        "type": "object", "properties": properties, "additionalProperties": False}}


NOTE = function("read_note", id={"type": "string"})
SPAWN = function("spawn_agent", message={"type": "string", "encrypted": True})
CODEX_TOOLS = [
    function("exec_command", cmd={"type": "string"}, yield_time_ms={"type": "integer"}), function("update_plan"),
    {"type": "custom", "name": "apply_patch", "description": "Edits files.",
     "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR}},
    {"type": "namespace", "name": "mcp__notes", "description": "Notes of the team.", "tools": [NOTE]},
    {"type": "namespace", "name": "collaboration", "description": "", "tools": [SPAWN]},
    {"type": "namespace", "name": "multi_agent_v1"},
    {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {
        "type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "number"}}}},
    {"type": "web_search", "external_web_access": False}, {"type": "image_generation", "output_format": "png"},
    {"type": "local_shell"}]
ADDITIONAL = {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [
    {"type": "namespace", "name": "functions", "description": "", "tools": [
        {"type": "custom", "name": "exec", "description": "Runs code.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /(.|\\n)+/"}},
        function("wait", cell_id={"type": "string"})]}]}


def said(role, text, **more):
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **more}


def call(name, call_id, arguments="{}", **more):
    return {"type": "function_call", "id": f"fc_{call_id}", "name": name, "arguments": arguments, "call_id": call_id, **more}


def output(call_id, value, kind="function_call"):
    return {"type": f"{kind}_output", "call_id": call_id, "output": value}


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "gAAAA"}
# What each turn adds to `input`.
CODEX_TURNS = {
    "first": [ADDITIONAL, said("developer", "<permissions>read only</permissions>"),
              said("user", "<environment_context>\n  <cwd>/src</cwd>\n</environment_context>"),
              said("user", "What is in README.md?")],
    "a namespaced call": [THOUGHT, call("read_note", "call_1", '{"id":"1"}', namespace="mcp__notes"),
                          output("call_1", {"content": "One note.", "success": True})],
    "a tool search": [{"type": "tool_search_call", "call_id": "call_2", "execution": "client", "status": "completed",
                       "arguments": {"query": "mail", "limit": 5}},
                      {"type": "tool_search_output", "call_id": "call_2", "execution": "client", "status": "completed",
                       "tools": [{"type": "namespace", "name": "mcp__mail", "description": "Mail.",
                                  "tools": [{**function("search", query={"type": "string"}), "defer_loading": True}]}]}],
    "calls of other types": [
        {"type": "custom_tool_call", "call_id": "call_3", "name": "apply_patch", "status": "completed",
         "input": "*** Begin Patch\n*** End Patch"}, output("call_3", "Done.", "custom_tool_call"),
        {"type": "custom_tool_call", "call_id": "call_4", "name": "exec", "namespace": "functions", "input": "1 + 1"},
        output("call_4", [{"type": "input_text", "text": "2"}], "custom_tool_call"),
        {"type": "local_shell_call", "call_id": "call_5", "status": "completed",
         "action": {"type": "exec", "command": ["ls"], "env": {}}}, output("call_5", "README.md"),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "AA"}],
    "snapshots and other agents": [
        {"type": "ghost_snapshot", "ghost_commit": {"id": "x", "parent": None}},
        {"type": "agent_message", "author": "/root", "recipient": "/root/a", "content": [
            {"type": "input_text", "text": "The tests pass."}, {"type": "encrypted_content", "encrypted_content": "x"}]},
        {"type": "function_call_output", "call_id": "call_orphan", "name": "create_thread", "namespace": "codex_app",
         "output": "<delegation>task</delegation>"},
        said("assistant", "It is a library.", phase="final_answer"), said("user", "And its licence?")],
    "compaction": [{"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
                   {"type": "context_compaction", "encrypted_content": None}, said("user", "Go on."),
                   {"type": "compaction_trigger"}],
}


def codex_body(items, **more):
    return {"model": "quire-31m", "instructions": "You are a coding agent.", "input": items, "tools": CODEX_TOOLS,
            "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False, "stream": True, "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": CODEX_HEADERS["session_id"], "text": {"verbosity": "low"},
            "client_metadata": {"x-codex-installation-id": "1"}, **more}


# ---- Claude Code ----

CLAUDE_HEADERS = {"anthropic-version": "2023-06-01", "User-Agent": "claude-cli/2.1.154 (external, cli)", "x-app": "cli",
                  "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,"
                                    "context-management-2025-06-27,mid-conversation-system-2026-04-07,effort-2025-11-24"}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def tool(name, **more):
    return {"name": name, "description": f"Does {name}.", "input_schema": {
        "type": "object", "properties": {"path": {"type": "string"}}}, **more}


CLAUDE_TOOLS = [tool("Read"), tool("Bash"), tool("ToolSearch"), tool("WebFetch", defer_loading=True),
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
                {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
                {**tool("Edit"), "type": "custom", "eager_input_streaming": True}]
REFERENCE = {"type": "tool_reference", "name": "WebFetch"}


def block(text, **more):
    return {"type": "text", "text": text, **more}


def use(name, id_, **more):
    return {"type": "tool_use", "id": id_, "name": name, "input": more}


def result(id_, content, **more):
    return {"type": "tool_result", "tool_use_id": id_, "content": content, **more}


ID_1, ID_2, ID_3 = "toolu_01A09q90qw90lq917835lq9", "toolu_01T1x1fJ34qAmk2tNTrN7Up6", "toolu_01Xu2mF7jW8qLcVh5sYbR3kD"
# The messages that each turn adds.
CLAUDE_TURNS = {
    "first": [{"role": "user", "content": [block("<system-reminder>\nToday is a day.\n</system-reminder>"),
                                           block("What is in README.md?", **CACHED)]},
              {"role": "system", "content": [block("Available agent types: Explore, Plan.", **CACHED)]}],
    "a call": [{"role": "assistant", "content": [
        {"type": "thinking", "thinking": "", "signature": "EuYBCkQYBCKE"}, block("I look."), use("Read", ID_1, path="README.md")]},
        {"role": "user", "content": [result(ID_1, [block("# A library")]), block("<system-reminder>x</system-reminder>")]}],
    "a tool is found": [
        {"role": "assistant", "content": [use("ToolSearch", ID_2)]},
        {"role": "user", "content": [result(ID_2, [{"type": "tool_reference", "tool_name": "WebFetch"}], **CACHED)]},
        {"role": "system", "content": [block("New tools."), {"type": "tool_addition", "tool": REFERENCE}]}],
    "another model's turn": [
        {"role": "assistant", "content": [
            {"type": "redacted_thinking", "data": "x"},
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
                {"type": "web_search_result", "title": "T", "url": "https://a.example", "encrypted_content": "x"}]},
            block("A page says so.", citations=[{"type": "web_search_result_location", "url": "https://a.example"}])]},
        {"role": "user", "content": [
            {"type": "document", "title": "Notes", "source": {"type": "text", "media_type": "text/plain", "data": "One note."}},
            block("And this?")]},
        {"role": "system", "content": [{"type": "tool_removal", "tool": REFERENCE}]}],
    "a search's result": [
        {"role": "assistant", "content": [use("Read", ID_3, path="x")]},
        {"role": "user", "content": [result(ID_3, [
            {"type": "search_result", "source": "s", "title": "t", "content": [block("x")], "citations": {"enabled": True}}],
            is_error=False), result(ID_3, "", is_error=True)]},
        {"role": "system", "content": [], "output_config": {"effort": "low"}}],
}


def claude_body(messages, **more):
    return {"model": "quire-31m", "max_tokens": 32000, "stream": True, "messages": messages, "tools": CLAUDE_TOOLS,
            "system": [block("x-anthropic-billing-header: cc_version=2.1.154; cch=1a2b3;"),
                       block("You are an agent.", **CACHED), block("Be brief.", **CACHED)],
            "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "metadata": {"user_id": "user_1_account__session_1"}, **more}


def conversation(turns):
    """The whole conversation at each turn, by the turn's name."""
    whole = []
    for name, added in turns.items():
        whole = [*whole, *added]
        yield name, whole
