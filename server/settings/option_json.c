/* option_json.c - see option_json.h. */
#include "server/settings/option_json.h"

#include <string.h>

#include "server/json/buffer.h"
#include "server/settings/option_table.h"

/* Returns the name of a kind, as docs/settings.md has it. */
static const char *kind_name(enum option_kind kind) {
    static const char *const names[] = {
        [OPTION_STRING] = "text",   [OPTION_LIST] = "list",   [OPTION_NUMBER] = "number",
        [OPTION_TOKENS] = "tokens", [OPTION_BYTES] = "bytes", [OPTION_FRACTION] = "fraction",
        [OPTION_CHOICE] = "choice", [OPTION_BOOL] = "bool"};
    return names[kind];
}

void option_json_member(struct buffer *out, const char *name, const char *text) {
    buffer_printf(out, "\"%s\":", name);
    buffer_json_string(out, text, strlen(text));
}

static void write_words(struct buffer *out, const char *const *words) {
    buffer_puts(out, ",\"words\":[");
    for (size_t i = 0; words[i]; i++) {
        if (i > 0) buffer_puts(out, ",");
        buffer_json_string(out, words[i], strlen(words[i]));
    }
    buffer_puts(out, "]");
}

void option_json_table(struct buffer *out, const struct option_table *table) {
    buffer_puts(out, "[");
    for (size_t i = 0; table && i < table->n; i++) {
        const struct option *option = &table->entries[i];
        buffer_puts(out, i ? ",\n{" : "\n{");
        option_json_member(out, "name", option->name);
        buffer_puts(out, ",");
        option_json_member(out, "kind", kind_name(option->kind));
        if (option->words) write_words(out, option->words);
        if (option->initial) {
            buffer_puts(out, ",");
            option_json_member(out, "default", option->initial);
        }
        buffer_puts(out, ",");
        option_json_member(out, "help", option->help);
        buffer_puts(out, "}");
    }
    buffer_puts(out, "]");
}
