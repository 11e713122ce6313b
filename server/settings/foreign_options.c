/* foreign_options.c - see foreign_options.h. */
#include "server/settings/foreign_options.h"

#include <stddef.h>
#include <string.h>

#include "server/json/buffer.h"
#include "server/settings/foreign_table.h"
#include "server/settings/option_json.h"

/* Tells whether n bytes of an argument are a spelling of m bytes. */
static bool is_spelt(const char *spelling, size_t m, const char *argument, size_t n) {
    const bool is_begin = m > 0 && spelling[m - 1] == '*',
               is_long = strncmp(spelling, "--", 2) == 0;
    if (is_begin) m--;
    if (is_begin ? n < m : n != m) return false;
    for (size_t i = 0; i < m; i++) {
        const char given = is_long && argument[i] == '_' ? '-' : argument[i];
        if (given != spelling[i]) return false;
    }
    return true;
}

/* Moves *at over spaces to a word; returns its length, 0 at the end. */
static size_t find_word(const char **at) {
    *at += strspn(*at, " ");
    return strcspn(*at, " ");
}

const struct foreign_option *foreign_option_find(const char *argument) {
    const size_t length = strcspn(argument, "=");
    for (const struct foreign_option *option = foreign_table; option->of; option++) {
        const char *at = option->spellings;
        for (size_t n; (n = find_word(&at)) > 0; at += n)
            if (is_spelt(at, n, argument, length)) return option;
    }
    return NULL;
}

/* Tells whether a list with commas between its words has this one. */
static bool has_word(const char *list, const char *word) {
    const size_t n = strlen(word);
    while (list) {
        if (n > 0 && strcspn(list, ",") == n && strncmp(list, word, n) == 0) return true;
        list = strchr(list, ',');
        if (list) list++;
    }
    return false;
}

static const char *usual_values(const char *argument) {
    const size_t n = strcspn(argument, "=");
    const struct usual_option *usual = usual_table;
    while (usual->spelling && !is_spelt(usual->spelling, strlen(usual->spelling), argument, n))
        usual++;
    return usual->values;
}

bool foreign_option_is_usual(int argc, char **argv, int *i) {
    static const char switches[] = "on,off,auto,true,false,0,1,enabled,disabled";
    const char *values = usual_values(argv[*i]), *equals = strchr(argv[*i], '=');
    if (!values || !*values) return values && !equals;
    const char *value = equals ? equals + 1 : *i + 1 < argc ? argv[*i + 1] : "";
    if (!equals && *values == ',' && !has_word(switches, value)) return true;
    if (!*value || (*values != '*' && !has_word(values, value))) return false;
    *i += !equals;
    return true;
}

/* Returns what is known of a value that is not spelt as here, or NULL. */
static const struct foreign_value *find_value(const char *option, const char *text) {
    for (const struct foreign_value *value = foreign_values; value->option; value++)
        if (strcmp(value->option, option) == 0 && strcmp(value->theirs, text) == 0) return value;
    return NULL;
}

const char *foreign_option_value(const char *option, const char *text) {
    const struct foreign_value *value = find_value(option, text);
    return value && value->ours ? value->ours : text;
}

const char *foreign_option_refusal(const char *option, const char *text) {
    const struct foreign_value *value = find_value(option, text);
    return value ? value->instead : NULL;
}

static void write_option(struct buffer *out, const struct foreign_option *option) {
    buffer_puts(out, "{\"spellings\":[");
    const char *at = option->spellings;
    for (size_t n; (n = find_word(&at)) > 0; at += n) {
        if (at > option->spellings) buffer_puts(out, ",");
        buffer_json_string(out, at, n);
    }
    buffer_puts(out, "],");
    option_json_member(out, "of", option->of);
    buffer_puts(out, ",");
    option_json_member(out, option->flag ? "option" : "instead",
                       option->flag ? option->flag : option->instead);
    buffer_puts(out, "}");
}

void foreign_options_json(struct buffer *out) {
    buffer_puts(out, "[");
    for (const struct foreign_option *option = foreign_table; option->of; option++) {
        buffer_puts(out, option == foreign_table ? "\n" : ",\n");
        write_option(out, option);
    }
    buffer_puts(out, "]");
}

void foreign_options_usual_json(struct buffer *out) {
    for (const struct usual_option *usual = usual_table; usual->spelling; usual++) {
        buffer_puts(out, usual > usual_table ? "," : "{");
        option_json_member(out, usual->spelling, usual->values);
    }
    buffer_puts(out, "}");
}

void foreign_options_values_json(struct buffer *out) {
    buffer_puts(out, "[");
    for (const struct foreign_value *value = foreign_values; value->option; value++) {
        buffer_puts(out, value > foreign_values ? ",{" : "{");
        option_json_member(out, "option", value->option);
        buffer_puts(out, ",");
        option_json_member(out, "theirs", value->theirs);
        buffer_puts(out, ",");
        option_json_member(out, value->ours ? "ours" : "instead",
                           value->ours ? value->ours : value->instead);
        buffer_puts(out, "}");
    }
    buffer_puts(out, "]");
}
