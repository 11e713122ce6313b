/* tool_formats.c - see tool_formats.h. */
#include "server/api/conversation/tool_formats.h"

#include <ctype.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/json_reader.h"
#include "engine/request/channels.h"
#include "server/api/conversation/arguments.h"
#include "server/api/conversation/tool_calls.h"
#include "server/api/conversation/tool_json.h"
#include "server/api/conversation/tool_objects.h"
#include "server/api/conversation/tool_python.h"
#include "server/api/conversation/tool_strings.h"

/* How many values of a call may begin like JSON and be none.  Each costs a look at all that
 * follows. */
enum { MAX_OPEN = 16 };

/* Skips white space, and the mark that some models write before each of several calls. */
static struct piece skip_begin(const struct tool_split *split, struct piece p) {
    const char *mark = split->format->begin;
    for (p = skip_space(p); *mark && begins(p, mark);)
        p = skip_space(behind(p, p.at + strlen(mark)));
    return p;
}

/* Reads calls that are a name each, and an object.  Marks between them, such as [ARGS], are
 * skipped. */
static bool read_named(struct tool_split *split, struct piece text) {
    for (text = skip_begin(split, text); text.n > 0;) {
        const char *brace = find(text, "{");
        struct piece name = {text.at, brace ? (size_t)(brace - text.at) : 0};
        const char *mark = name.n > 0 ? memchr(name.at, '[', name.n) : NULL;
        if (mark) name.n = (size_t)(mark - name.at);
        if (!is_name(trimmed(name))) return false;
        const struct piece object = braced_of(behind(text, brace));
        struct tool_call *call = object.n > 0 ? tool_split_add_call(split, trimmed(name)) : NULL;
        if (!call) return false;
        buffer_append(&call->arguments, object.at, object.n);
        if (!arguments_mend(&call->arguments)) return false;
        text = skip_begin(split, behind(text, object.at + object.n));
    }
    return true;
}

/* ---- formats ---- */

static bool read_json(struct tool_split *split, const char *text, size_t n) {
    return tool_json_read(split, trimmed((struct piece){text, n}));
}

/* Reads calls of Llama 3.1 and 3.2: {"name": …, "parameters": …}, with semicolons between.  An
 * object with a name alone is an answer: no mark says that it is a call. */
static bool read_llama(struct tool_split *split, const char *text, size_t n) {
    const struct piece all = {text, n};
    return tool_json_has_arguments(braced_of(skip_space(all))) &&
           tool_json_read_all(split, all, ';');
}

static enum tool_beginning look_for_object(const char *text, size_t n) {
    const struct piece p = skip_space((struct piece){text, n});
    if (p.n == 0) return TOOL_MAY_BEGIN;
    return p.at[0] == '{' ? TOOL_BEGINS : TOOL_BEGINS_NOT;
}

static bool read_array(struct tool_split *split, const char *text, size_t n) {
    struct piece all = trimmed((struct piece){text, n});
    if (all.n < 2 || all.at[0] != '[' || all.at[all.n - 1] != ']') return false;
    return tool_json_read_all(split, (struct piece){all.at + 1, all.n - 2}, ',');
}

/* Reads calls of Phi-4-mini whose mark has taken the bracket that opens the array. */
static bool read_opened(struct tool_split *split, const char *text, size_t n) {
    const struct piece all = trimmed((struct piece){text, n});
    if (all.n == 0 || all.at[all.n - 1] != ']') return false;
    return tool_json_read_all(split, (struct piece){all.at, all.n - 1}, ',');
}

/* Reads calls of Mistral: an array of objects; since version 11 of its tokenizer NAME[ARGS]{…}, one
 * after the other, with or without the mark before each. */
static bool read_mistral(struct tool_split *split, const char *text, size_t n) {
    struct piece rest = skip_begin(split, (struct piece){text, n});
    if (!begins(rest, "[")) return read_named(split, rest);
    while (rest.n > 0) {
        const struct piece list = braced_of(rest);
        if (list.n == 0 || !read_array(split, list.at, list.n)) return false;
        rest = skip_begin(split, behind(rest, list.at + list.n));
    }
    return true;
}

/* Reads calls of GLM-4: a name, and on the next line its arguments. */
static bool read_lines(struct tool_split *split, const char *text, size_t n) {
    return read_named(split, (struct piece){text, n});
}

/* Tells calls of GLM-4 from its other answers, which begin with a line end. */
static enum tool_beginning look_for_lines(const char *text, size_t n) {
    const char *line_end = memchr(text, '\n', n);
    const struct piece name = {text, line_end ? (size_t)(line_end - text) : n};
    if (n == 0) return TOOL_MAY_BEGIN;
    if (!is_name(name)) return TOOL_BEGINS_NOT;
    const size_t at = name.n + 1;
    if (!line_end || at == n) return TOOL_MAY_BEGIN;
    return text[at] == '{' ? TOOL_BEGINS : TOOL_BEGINS_NOT;
}

/* Tells what a name of Python's is in JSON: templates that print a value as it is make its models
 * write them.  NULL: it is none. */
static const char *json_of_python(struct piece text) {
    static const char *const names[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < 3; i++)
        if (text.n == strlen(names[i][0]) && begins(text, names[i][0])) return names[i][1];
    return NULL;
}

/* Appends a value that is written without quotes: JSON if it is some and may be, else a string. */
static void append_value(struct buffer *out, struct piece text, enum tool_string is) {
    const struct piece value = trimmed(text);
    const bool is_quoted =
        value.n > 0 && quoted_of(value).n == value.n && tool_json_is_value(value);
    const bool may_be_json = is == TOOL_STRING_NONE || (is == TOOL_STRING_QUOTED && is_quoted);
    if (is == TOOL_STRING_NONE && json_of_python(text)) buffer_puts(out, json_of_python(text));
    else if (may_be_json && tool_json_is_value(text)) buffer_append(out, text.at, text.n);
    else buffer_json_string(out, text.at, text.n);
}

/* Removes the one line end that templates put at either side of a value. */
static struct piece without_line_ends(struct piece p) {
    if (p.n > 0 && p.at[0] == '\n') p = behind(p, p.at + 1);
    if (p.n > 0 && p.at[p.n - 1] == '\n') p.n--;
    return p;
}

/* Returns where a value ends: at the mark, which may also stand in strings of JSON.  *n_open counts
 * values that begin like such JSON and are none. */
static const char *find_end(struct piece value, const char *mark, uint32_t *n_open) {
    const struct piece text = skip_space(value);
    const char *first = find(value, mark);
    if (!first || text.n == 0 || !memchr("\"{[", text.at[0], 3) || *n_open == MAX_OPEN)
        return first;
    const struct piece whole = begins(text, "\"") ? quoted_of(text) : braced_of(text),
                       rest = skip_space(behind(text, text.at + whole.n));
    if (whole.n > 0 && rest.at <= first) return first;
    if (whole.n > 0 && begins(rest, mark) && tool_json_is_value(whole)) return rest.at;
    ++*n_open;
    return first;
}

/* Reads the element that the text begins with, behind its first mark, and cuts it off the text. */
static bool read_element(struct tool_split *split, struct tool_call *call, struct piece *text,
                         uint32_t *n_open) {
    const struct tool_elements *marks = split->format->elements;
    struct piece key = *text;
    const char *end = find(key, marks->key_end);
    if (!end) return false;
    struct piece value = behind(key, end + strlen(marks->key_end));
    key.n = (size_t)(end - key.at);
    key = trimmed(key);
    const enum tool_string is = tool_strings_find(split->strings, call->name.data, key.at, key.n);
    const char *begin = *marks->value_begin ? find(value, marks->value_begin) : value.at;
    if (!begin) return false;
    value = behind(value, begin + strlen(marks->value_begin));
    end = is == TOOL_STRING_BARE ? find(value, marks->value_end)
                                 : find_end(value, marks->value_end, n_open);
    if (!end) return false;
    *text = behind(value, end + strlen(marks->value_end));
    value.n = (size_t)(end - value.at);
    if (call->arguments.length > 1) buffer_puts(&call->arguments, ",");
    buffer_json_string(&call->arguments, key.at, key.n);
    buffer_puts(&call->arguments, ":");
    append_value(&call->arguments, marks->on_lines ? without_line_ends(value) : value, is);
    return true;
}

static bool read_elements(struct tool_split *split, struct tool_call *call, struct piece text) {
    const char *mark = split->format->elements->key_begin;
    uint32_t n_open = 0;
    if (call->name.failed) return false;
    buffer_puts(&call->arguments, "{");
    for (const char *at; (at = find(text, mark));) {
        text = behind(text, at + strlen(mark));
        if (!read_element(split, call, &text, &n_open)) return false;
    }
    buffer_puts(&call->arguments, "}");
    return arguments_mend(&call->arguments);
}

/* Reads a call of Qwen3-Coder: <function=NAME><parameter=KEY>VALUE</parameter>…</function>. */
static bool read_functions(struct tool_split *split, const char *text, size_t n) {
    const struct piece all = trimmed((struct piece){text, n});
    if (!begins(all, "<function=")) return false;
    struct piece name = behind(all, all.at + strlen("<function="));
    const char *end = find(name, ">");
    if (!end || !find(all, "</function>")) return false;
    const struct piece rest = behind(all, end + 1);
    name.n = (size_t)(end - name.at);
    struct tool_call *call =
        is_name(trimmed(name)) ? tool_split_add_call(split, trimmed(name)) : NULL;
    return call && read_elements(split, call, rest);
}

/* Reads a call of GLM-4.5: NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> for each
 * argument. */
static bool read_glm(struct tool_split *split, const char *text, size_t n) {
    const struct piece all = trimmed((struct piece){text, n});
    const char *end = find(all, "<arg_key>");
    struct piece name = {all.at, end ? (size_t)(end - all.at) : all.n};
    name = trimmed(name);
    struct tool_call *call = is_name(name) ? tool_split_add_call(split, name) : NULL;
    return call && read_elements(split, call, behind(all, name.at + name.n));
}

/* Returns the calls behind one of MiniMax's, whose end may also stand in an argument. */
static struct piece behind_invoke(struct piece p, const char **end) {
    static const char mark[] = "</invoke>";
    struct piece rest = p;
    for (const char *at; (at = find(rest, mark));) {
        rest = behind(rest, at + sizeof(mark) - 1);
        const struct piece next = skip_space(rest);
        *end = at;
        if (next.n == 0 || begins(next, "<invoke ")) return next;
    }
    *end = NULL;
    return rest;
}

/* Reads calls of MiniMax: <invoke name="NAME"><parameter name="KEY">VALUE</parameter>…</invoke>,
 * one after the other. */
static bool read_invokes(struct tool_split *split, const char *text, size_t n) {
    static const char mark[] = "<invoke name=\"";
    struct piece rest = trimmed((struct piece){text, n});
    while (rest.n > 0) {
        const char *end;
        struct piece call = rest;
        rest = behind_invoke(call, &end);
        if (!end || !begins(call, mark)) return false;
        call = behind((struct piece){call.at, (size_t)(end - call.at)}, call.at + sizeof(mark) - 1);
        const char *quote = find(call, "\">");
        const struct piece name = {call.at, quote ? (size_t)(quote - call.at) : 0};
        struct tool_call *added = is_name(name) ? tool_split_add_call(split, name) : NULL;
        if (!added || !read_elements(split, added, behind(call, quote + 2))) return false;
    }
    return true;
}

/* Reads a call of Gemma 4 and FunctionGemma: call:NAME{…}. */
static bool read_gemma(struct tool_split *split, const char *text, size_t n) {
    static const char mark[] = "call:";
    struct piece all = trimmed((struct piece){text, n});
    if (!begins(all, mark)) return false;
    all = behind(all, all.at + sizeof(mark) - 1);
    const char *brace = find(all, "{");
    const struct piece name = trimmed((struct piece){all.at, brace ? (size_t)(brace - all.at) : 0});
    struct tool_call *call = is_name(name) ? tool_split_add_call(split, name) : NULL;
    if (!call) return false;
    struct piece object = behind(all, brace);
    const bool is_whole = tool_object_read(&call->arguments, &object) &&
                          skip_space(object).n == 0 && arguments_mend(&call->arguments);
    if (!is_whole) tool_split_drop_last(split);
    return is_whole;
}

/* Reads calls of LFM2 and OLMo 3: NAME(KEY=VALUE, …), with or without the brackets of a list, and
 * with commas or line ends between.  Where a prompt asks for JSON, and in constrained answers, they
 * are an array of objects. */
static bool read_python(struct tool_split *split, const char *text, size_t n) {
    struct piece all = trimmed((struct piece){text, n}), name;
    const bool is_list = all.n >= 2 && all.at[0] == '[' && all.at[all.n - 1] == ']';
    if (is_list) all = trimmed((struct piece){all.at + 1, all.n - 2});
    if (begins(all, "{")) return is_list && read_array(split, text, n);
    while (all.n > 0) {
        if (!tool_python_name(&all, &name)) return false;
        struct tool_call *call = tool_split_add_call(split, name);
        if (!call || !tool_python_arguments(&call->arguments, &all)) return false;
        if (!arguments_mend(&call->arguments)) return false;
        const struct piece rest = skip_space(all);
        if (rest.n > 0 && rest.at == all.at && rest.at[0] != ',') return false;
        all = begins(rest, ",") ? skip_space(behind(rest, rest.at + 1)) : rest;
    }
    return true;
}

/* What stands around a call, and between its name and its arguments. */
struct call_marks {
    const char *begin, *between, *end;
};

/* Cuts the name that a call has in Kimi's models, functions.NAME:NUMBER, down to NAME. */
static struct piece own_name(struct piece name) {
    static const char space[] = "functions.";
    if (begins(name, space)) name = behind(name, name.at + sizeof(space) - 1);
    size_t n = name.n;
    while (n > 0 && isdigit((unsigned char)name.at[n - 1])) n--;
    if (n > 1 && n < name.n && name.at[n - 1] == ':') name.n = n - 1;
    return name;
}

/* Reads the call that the text begins with, and cuts it off.  Before DeepSeek V3.1 the word
 * `function` stood in place of the name, which followed the mark, and a fence around the object. */
static bool read_marked_call(struct tool_split *split, const struct call_marks *marks,
                             struct piece *text) {
    static const char fence[] = "```";
    if (!begins(*text, marks->begin)) return false;
    struct piece name = behind(*text, text->at + strlen(marks->begin));
    const char *between = find(name, marks->between);
    if (!between) return false;
    const struct piece rest = behind(name, between + strlen(marks->between));
    const char *brace = find(rest, "{");
    if (!brace) return false;
    const struct piece before = {rest.at, (size_t)(brace - rest.at)};
    const char *fenced = find(before, fence);
    if (fenced) name = (struct piece){rest.at, (size_t)(fenced - rest.at)};
    else name.n = (size_t)(between - name.at);
    name = own_name(trimmed(name));
    const struct piece object = braced_of(behind(rest, brace));
    struct tool_call *call =
        is_name(name) && object.n > 0 ? tool_split_add_call(split, name) : NULL;
    if (!call) return false;
    buffer_append(&call->arguments, object.at, object.n);
    *text = skip_space(behind(rest, object.at + object.n));
    if (fenced && begins(*text, fence))
        *text = skip_space(behind(*text, text->at + sizeof(fence) - 1));
    const bool ends = text->n == 0 || begins(*text, marks->end);
    if (text->n > 0 && ends) *text = skip_space(behind(*text, text->at + strlen(marks->end)));
    return ends && arguments_mend(&call->arguments);
}

static bool read_marked(struct tool_split *split, const struct call_marks *marks, const char *text,
                        size_t n) {
    struct piece rest = trimmed((struct piece){text, n});
    while (rest.n > 0)
        if (!read_marked_call(split, marks, &rest)) return false;
    return true;
}

static bool read_kimi(struct tool_split *split, const char *text, size_t n) {
    static const struct call_marks marks = {"<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                                            "<|tool_call_end|>"};
    return read_marked(split, &marks, text, n);
}

static bool read_deepseek(struct tool_split *split, const char *text, size_t n) {
    static const struct call_marks marks = {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
                                            "<｜tool▁call▁end｜>"};
    return read_marked(split, &marks, text, n);
}

/* Reads a message to a function (channels.h): its header names it, and an object follows. */
static bool read_message(struct tool_split *split, const char *text, size_t n) {
    const struct piece all = {text, n};
    const char *to = find(all, CHANNEL_TO), *brace = find(all, "{");
    if (!to || !brace || brace < to) return false;
    struct piece name = {to + strlen(CHANNEL_TO), 0};
    while (name.at + name.n < brace && !json_is_space(name.at[name.n]) &&
           !channel_is_mark(name.at[name.n]))
        name.n++;
    const struct piece body = trimmed(behind(all, brace));
    struct tool_call *call =
        is_name(name) && braced_of(body).n == body.n ? tool_split_add_call(split, name) : NULL;
    if (!call) return false;
    buffer_append(&call->arguments, body.at, body.n);
    return arguments_mend(&call->arguments);
}

static const struct tool_writing hermes = {.open = "",
                                           .close = "",
                                           .before_name = "<tool_call>\n{\"name\": \"",
                                           .before_arguments = "\", \"arguments\": ",
                                           .behind = "}\n</tool_call>",
                                           .between = "\n"};
static const struct tool_writing array = {.open = "[",
                                          .close = "]",
                                          .before_name = "{\"name\": \"",
                                          .before_arguments = "\", \"arguments\": ",
                                          .behind = "}",
                                          .between = ", "};
static const struct tool_writing toolcall = {.open = "<TOOLCALL>[",
                                             .close = "]</TOOLCALL>",
                                             .before_name = "{\"name\": \"",
                                             .before_arguments = "\", \"arguments\": ",
                                             .behind = "}",
                                             .between = ", "};
static const struct tool_writing functools = {.open = "functools[",
                                              .close = "]",
                                              .before_name = "{\"name\": \"",
                                              .before_arguments = "\", \"arguments\": ",
                                              .behind = "}",
                                              .between = ", "};
static const struct tool_writing llama = {.open = "",
                                          .close = "",
                                          .before_name = "{\"name\": \"",
                                          .before_arguments = "\", \"parameters\": ",
                                          .behind = "}",
                                          .between = "; ",
                                          .text = "([^{\\s][\\s\\S]*)?"};
static const struct tool_writing lines = {.open = "",
                                          .close = "",
                                          .before_name = "",
                                          .before_arguments = "\n",
                                          .behind = "",
                                          .between = "\n",
                                          .text = "(\\n[\\s\\S]*)?"};
static const struct tool_writing functions = {.open = "",
                                              .close = "",
                                              .before_name = "<tool_call>\n<function=",
                                              .before_arguments = ">\n",
                                              .behind = "</function>\n</tool_call>",
                                              .between = "\n"};
static const struct tool_writing seed_functions = {.open = "",
                                                   .close = "",
                                                   .before_name = "<seed:tool_call>\n<function=",
                                                   .before_arguments = ">\n",
                                                   .behind = "</function>\n</seed:tool_call>",
                                                   .between = "\n"};
static const struct tool_writing glm = {.open = "",
                                        .close = "",
                                        .before_name = "<tool_call>",
                                        .before_arguments = "\n",
                                        .behind = "</tool_call>",
                                        .between = "\n"};
static const struct tool_writing action = {
    .open = "[\n    ",
    .close = "\n]",
    .before_name = "{\"tool_call_id\": \"0\", \"tool_name\": \"",
    .before_arguments = "\", \"parameters\": ",
    .behind = "}",
    .between = ",\n    "};
static const struct tool_writing invoke = {.open = "<minimax:tool_call>\n",
                                           .close = "</minimax:tool_call>",
                                           .before_name = "<invoke name=\"",
                                           .before_arguments = "\">\n",
                                           .behind = "</invoke>\n",
                                           .between = ""};
static const struct tool_writing gemma = {.open = "",
                                          .close = "",
                                          .before_name = "call:",
                                          .before_arguments = "",
                                          .behind = "",
                                          .between = "<tool_call|><|tool_call>"};
static const struct tool_writing function_gemma = {
    .open = "",
    .close = "",
    .before_name = "call:",
    .before_arguments = "",
    .behind = "",
    .between = "<end_function_call><start_function_call>"};
static const struct tool_writing kimi = {.open = "",
                                         .close = "",
                                         .before_name = "<|tool_call_begin|>functions.",
                                         .before_arguments = ":0<|tool_call_argument_begin|>",
                                         .behind = "<|tool_call_end|>",
                                         .between = ""};
static const struct tool_writing deepseek = {.open = "",
                                             .close = "",
                                             .before_name = "<｜tool▁call▁begin｜>",
                                             .before_arguments = "<｜tool▁sep｜>",
                                             .behind = "<｜tool▁call▁end｜>",
                                             .between = ""};
static const struct tool_writing message = {.before_name = "<|channel|>commentary" CHANNEL_TO,
                                            .before_arguments = " <|constrain|>json<|message|>",
                                            .behind = "",
                                            .text = "<|channel|>final<|message|>",
                                            .is_message = true};

static const struct tool_elements parameters = {
    "<parameter=", ">", "", "</parameter>", true, "<function=", "</function>"};
static const struct tool_elements arguments = {
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", false, NULL, NULL};

static const struct tool_elements named_parameters = {
    "<parameter name=\"", "\">", "", "</parameter>", false, "<invoke name=\"", "</invoke>"};

/* The more telling signs come first; that of GLM-4 says "write the arguments as JSON". */
static const struct tool_format formats[] = {
    {"glm-4.5", "<arg_key>", "<tool_call>", "</tool_call>", NULL, false, read_glm, &glm, &arguments,
     "", true},
    {"seed-oss", "<seed:tool_call>", "<seed:tool_call>", "</seed:tool_call>", NULL, false,
     read_functions, &seed_functions, &parameters, "<", false},
    {"qwen3-coder", "<function=", "<tool_call>", "</tool_call>", NULL, false, read_functions,
     &functions, &parameters, "<", false},
    {"hermes", "<tool_call>", "<tool_call>", "</tool_call>", NULL, false, read_json, &hermes, NULL,
     "{", false},
    {"harmony", "<|channel|>commentary", CHANNEL_MESSAGE, CHANNEL_END, NULL, false, read_message,
     &message, NULL, "ta" CHANNEL_NAME, false},
    {"gemma-4", "<|tool_call>", "<|tool_call>", "<tool_call|>", NULL, true, read_gemma, &gemma,
     NULL, "c", false},
    {"functiongemma", "<start_function_call>", "<start_function_call>", "<end_function_call>", NULL,
     true, read_gemma, &function_gemma, NULL, "c", false},
    {"kimi-k2", "<|tool_calls_section_begin|>", "<|tool_calls_section_begin|>",
     "<|tool_calls_section_end|>", NULL, true, read_kimi, &kimi, NULL, "<", false},
    {"deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", NULL,
     true, read_deepseek, &deepseek, NULL, "<", false},
    {"cohere", "<|START_ACTION|>", "<|START_ACTION|>", "<|END_ACTION|>", NULL, true, read_array,
     &action, NULL, "[", false},
    {"minimax", "<minimax:tool_call>", "<minimax:tool_call>", "</minimax:tool_call>", NULL, false,
     read_invokes, &invoke, &named_parameters, "<", false},
    {"mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", NULL, NULL, true, read_mistral, &array, NULL, "[",
     true},
    {"phi-4-functools", "functools[", "functools[", NULL, NULL, false, read_opened, &functools,
     NULL, "{", false},
    {"phi-4", "<|tool_call|>", "<|tool_call|>", "<|/tool_call|>", NULL, true, read_array, &array,
     NULL, "[", false},
    {"lfm2", "List of tools: ", "<|tool_call_start|>", "<|tool_call_end|>", NULL, true, read_python,
     &array, NULL, "[", false},
    {"olmo-3", "<function_calls>", "<function_calls>", "</function_calls>", NULL, true, read_python,
     &array, NULL, "[", true},
    {"nemotron", "<TOOLCALL>", "<TOOLCALL>", "</TOOLCALL>", NULL, false, read_array, &toolcall,
     NULL, "[", false},
    {"llama-3", "\"parameters\": dictionary", "", NULL, look_for_object, false, read_llama, &llama,
     NULL, "{", false},
    {"glm-4", "请使用 Json 格式表示调用的参数", "", NULL, look_for_lines, false, read_lines, &lines,
     NULL, "", true},
};

const char *const tool_marks[] = {"<tool_call>",
                                  "</tool_call>",
                                  "[TOOL_CALLS]",
                                  "[ARGS]",
                                  "[CALL_ID]",
                                  "<|tool_call|>",
                                  "<|/tool_call|>",
                                  "<arg_key>",
                                  "</arg_key>",
                                  "<arg_value>",
                                  "</arg_value>",
                                  "<|START_ACTION|>",
                                  "<|END_ACTION|>",
                                  "<minimax:tool_call>",
                                  "</minimax:tool_call>",
                                  "<seed:tool_call>",
                                  "</seed:tool_call>",
                                  "<|tool_call>",
                                  "<tool_call|>",
                                  TOOL_STRING_MARK,
                                  "<|tool_calls_section_begin|>",
                                  "<|tool_calls_section_end|>",
                                  "<|tool_call_begin|>",
                                  "<|tool_call_argument_begin|>",
                                  "<|tool_call_end|>",
                                  "<|tool_call_start|>",
                                  "<start_function_call>",
                                  "<end_function_call>",
                                  TOOL_ESCAPE_MARK,
                                  "<function_calls>",
                                  "</function_calls>",
                                  "<TOOLCALL>",
                                  "</TOOLCALL>",
                                  "<｜tool▁calls▁begin｜>",
                                  "<｜tool▁calls▁end｜>",
                                  "<｜tool▁call▁begin｜>",
                                  "<｜tool▁call▁end｜>",
                                  "<｜tool▁sep｜>",
                                  NULL};

const struct tool_format *tool_format_of(const char *template_source) {
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++)
        if (strstr(template_source, formats[i].sign)) return &formats[i];
    return NULL;
}
