/* tool_bare.c - see tool_bare.h. */
#include "server/api/conversation/tool_bare.h"

#include <string.h>

#include "server/api/conversation/tool_calls.h"
#include "server/api/conversation/tool_json.h"

static const char fence[] = "```";

/* The most bytes in front of a tool's name, white space as a rule.  Each piece of the text costs a
 * look at them, and a client does not see them meanwhile. */
enum { MOST_BEFORE_NAME = 1024 };

/* Cuts the word off the text, which may end inside of it. */
static enum tool_beginning take(struct piece *text, const char *word) {
    const size_t n = strlen(word);
    if (text->n < n) return memcmp(text->at, word, text->n) ? TOOL_BEGINS_NOT : TOOL_MAY_BEGIN;
    if (!begins(*text, word)) return TOOL_BEGINS_NOT;
    *text = behind(*text, text->at + n);
    return TOOL_BEGINS;
}

/* Cuts off the name of a tool, and what ends it. */
static enum tool_beginning take_name(struct piece *text, const json_t *tools, const char *end) {
    enum tool_beginning best = TOOL_BEGINS_NOT;
    const char *name;
    json_t *tool;
    json_object_foreach((json_t *)tools, name, tool) {
        struct piece rest = *text;
        enum tool_beginning is = take(&rest, name);
        if (is == TOOL_BEGINS) is = take(&rest, end);
        if (is == TOOL_BEGINS) *text = rest;
        if (is == TOOL_BEGINS) return is;
        if (is == TOOL_MAY_BEGIN) best = is;
    }
    return best;
}

/* Cuts off the language behind the mark of a fence. */
static enum tool_beginning take_language(struct piece *text) {
    static const char *const languages[] = {"json", "tool_call", ""};
    enum tool_beginning is = TOOL_BEGINS_NOT;
    for (int i = 0; i < 3 && is == TOOL_BEGINS_NOT; i++) is = take(text, languages[i]);
    if (is == TOOL_BEGINS && text->n == 0) return TOOL_MAY_BEGIN;
    if (is == TOOL_BEGINS && !json_is_space(text->at[0])) return TOOL_BEGINS_NOT;
    return is;
}

/* Cuts off the line that opens a fence, if there is one. */
static enum tool_beginning take_fence(struct piece *text) {
    if (text->n == 0 || text->at[0] != fence[0]) return TOOL_BEGINS;
    enum tool_beginning is = take(text, fence);
    if (is == TOOL_BEGINS) is = take_language(text);
    if (is == TOOL_BEGINS) *text = skip_space(*text);
    return is;
}

/* Cuts off words with white space before each. */
static enum tool_beginning take_words(struct piece *text, const char *const *words, size_t n) {
    enum tool_beginning is = TOOL_BEGINS;
    for (size_t i = 0; i < n && is == TOOL_BEGINS; i++) {
        *text = skip_space(*text);
        is = take(text, words[i]);
    }
    return is;
}

/* Cuts off the name of a tool, if what comes before it is short: start is the text's. */
static enum tool_beginning take_near_name(struct piece *text, const char *start,
                                          enum tool_beginning before, const json_t *tools,
                                          const char *end) {
    if (text->at - start > MOST_BEFORE_NAME) return TOOL_BEGINS_NOT;
    return before == TOOL_BEGINS ? take_name(text, tools, end) : before;
}

static enum tool_beginning look_for_name(struct tool_bare *bare, const json_t *tools,
                                         struct piece text) {
    static const char *const words[] = {"{", "\"name\"", ":", "\""};
    const char *start = text.at;
    text = skip_space(text);
    enum tool_beginning is = take_fence(&text);
    bare->n_skipped = bare->n_seen = (size_t)(text.at - start);
    if (is == TOOL_BEGINS && begins(text, "[")) text = behind(text, text.at + 1);
    if (is == TOOL_BEGINS) is = take_words(&text, words, 4);
    return take_near_name(&text, start, is, tools, "\"");
}

static enum tool_beginning look_for_element(struct tool_bare *bare,
                                            const struct tool_elements *elements,
                                            const json_t *tools, struct piece text) {
    const char *start = text.at;
    text = skip_space(text);
    bare->n_skipped = bare->n_seen = (size_t)(text.at - start);
    const enum tool_beginning is = take(&text, elements->call_begin);
    return take_near_name(&text, start, is, tools, elements->key_end);
}

/* Looks at the first words; nothing else is done before they name a tool. */
static enum tool_beginning look_at_first(struct tool_bare *bare, const struct tool_format *format,
                                         const json_t *tools, struct piece text) {
    const struct tool_elements *elements = format->elements;
    if (elements && elements->call_begin) {
        const enum tool_beginning is = look_for_element(bare, elements, tools, text);
        bare->is_element = is != TOOL_BEGINS_NOT && skip_space(text).n > 0;
        if (bare->is_element) return is;
    }
    return look_for_name(bare, tools, text);
}

/* Searches on for the brace that ends the object, or the array. */
static bool ends_braced(struct tool_bare *bare, struct piece text) {
    while (bare->n_seen < text.n) {
        const char c = text.at[bare->n_seen];
        if (bare->in_string && c == '\\') {
            if (bare->n_seen + 1 == text.n) return false; /* what it escapes is to come */
            bare->n_seen++;
        } else if (c == '"') {
            bare->in_string = !bare->in_string;
        } else if (!bare->in_string && (c == '{' || c == '[')) {
            bare->depth++;
        } else if (!bare->in_string && (c == '}' || c == ']')) {
            bare->depth--;
        }
        bare->n_seen++;
        if (bare->depth == 0) return true;
    }
    return false;
}

static bool ends_element(struct tool_bare *bare, const char *mark, struct piece text) {
    const size_t n = strlen(mark);
    const char *at = find(behind(text, text.at + bare->n_seen), mark);
    if (at) bare->n_seen = (size_t)(at - text.at) + n;
    else if (text.n > bare->n_seen + n) bare->n_seen = text.n - n;
    return at;
}

enum tool_beginning tool_bare_look(struct tool_bare *bare, const struct tool_format *format,
                                   const json_t *tools, struct piece text, size_t *n) {
    if (!bare->is_named) {
        const enum tool_beginning is = look_at_first(bare, format, tools, text);
        bare->is_named = is == TOOL_BEGINS;
        if (!bare->is_named) return is;
    }
    const bool ends = bare->is_element ? ends_element(bare, format->elements->call_end, text)
                                       : ends_braced(bare, text);
    *n = bare->n_seen;
    return ends ? TOOL_BEGINS : TOOL_MAY_BEGIN;
}

bool tool_bare_read(struct tool_split *split, const char *text, size_t n) {
    const struct piece all = trimmed((struct piece){text, n});
    if (begins(all, "{")) return tool_json_has_arguments(all) && tool_json_read(split, all);
    if (!begins(all, "[")) return split->format->read(split, text, n);
    const struct piece list = {all.at + 1, all.n - 2}, first = braced_of(skip_space(list));
    return tool_json_has_arguments(first) && tool_json_read_all(split, list, ',');
}

const char *tool_bare_closing(const struct tool_bare *bare, const struct tool_format *format) {
    return bare->is_element ? format->end : fence;
}
