/* option_table.c - see option_table.h. */
#include "server/settings/option_table.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/likeness.h"
#include "server/settings/foreign_options.h"
#include "server/settings/option_hint.h"

/* Tells whether the text is a number below 0, which every setting refuses as too small. */
static bool is_negative(const char *text) {
    const size_t n = *text == '-' ? strspn(text + 1, "0123456789") : 0;
    const char *suffix = text + 1 + n;
    return n > 0 && (!*suffix || (strchr("KMGkmg", *suffix) && !suffix[1]));
}

static int refuse_range(const struct option *option, const char *text,
                        const struct option_source *from) {
    return error_set(from->err, ERR_INVALID, "%s: %.64s is out of range [%llu, %llu]", from->label,
                     text, (unsigned long long)option->low, (unsigned long long)option->high);
}

static int refuse_number(const struct option *option, const char *text,
                         const struct option_source *from) {
    static const char *const names[] = {
        [OPTION_NUMBER] = "whole number",
        [OPTION_TOKENS] = "number of tokens (digits, then k or m by 1000, or K or M by 1024)",
        [OPTION_BYTES] = "number of bytes (digits, then K, M or G)"};
    return error_set(from->err, ERR_INVALID, "%s: '%.64s' is not a %s", from->label, text,
                     names[option->kind]);
}

/* Returns what a letter behind a number multiplies it by; 0: it means nothing there. */
static uint64_t unit_of(enum option_kind kind, char letter) {
    static const char letters[] = "KMG";
    const char *at = letter ? strchr(letters, toupper((unsigned char)letter)) : NULL;
    const bool is_decimal = kind == OPTION_TOKENS && islower((unsigned char)letter);
    uint64_t unit = 1;
    if (!at || kind == OPTION_NUMBER) return 0;
    for (const char *each = letters; each <= at; each++) unit *= is_decimal ? 1000 : 1024;
    return unit;
}

/* Reads digits.  Returns false if the number has more than 64 bits. */
static bool read_digits(const char **at, uint64_t *out) {
    for (*out = 0; isdigit((unsigned char)**at); ++*at)
        if (__builtin_mul_overflow(*out, 10u, out) ||
            __builtin_add_overflow(*out, (uint64_t)(**at - '0'), out))
            return false;
    return true;
}

/* Reads digits behind a point, which only a unit by 1000 may follow: ".6k" is 600.  Those below a
 * whole token are left out. */
static bool read_thousandths(const char **at, enum option_kind kind, uint64_t *out) {
    const char *digit = *at + 1;
    const size_t n = strspn(digit, "0123456789");
    uint64_t unit = unit_of(kind, digit[n]);
    if (n == 0 || unit % 1000 != 0 || unit == 0) return false;
    for (size_t i = 0; i < n; i++) *out += (uint64_t)(digit[i] - '0') * (unit /= 10);
    *at = digit + n;
    return true;
}

static int parse_number(const struct option *option, const char *text,
                        const struct option_source *from, uint64_t *out) {
    uint64_t x, rest = 0, unit = 1;
    const char *at = text;
    if (is_negative(text)) return refuse_range(option, text, from);
    if (!read_digits(&at, &x)) return refuse_range(option, text, from);
    if (at == text || (*at == '.' && !read_thousandths(&at, option->kind, &rest)))
        return refuse_number(option, text, from);
    if (*at && !(unit = unit_of(option->kind, *at++))) return refuse_number(option, text, from);
    if (*at) return refuse_number(option, text, from);
    if (__builtin_mul_overflow(x, unit, &x) || __builtin_add_overflow(x, rest, &x) ||
        x < option->low || x > option->high)
        return refuse_range(option, text, from);
    *out = x;
    return 0;
}

static int parse_fraction(const struct option *option, const char *text,
                          const struct option_source *from, double *out) {
    char *end;
    const double x = strtod(text, &end);
    const char *digits = text + (*text == '-');
    if (!(isdigit((unsigned char)*digits) || *digits == '.') || *end)
        return error_set(from->err, ERR_INVALID, "%s: '%.64s' is not a number", from->label, text);
    if (!(100 * x >= (double)option->low && 100 * x <= (double)option->high))
        return error_set(from->err, ERR_INVALID, "%s: %.64s is out of range [%.2g, %.2g]",
                         from->label, text, (double)option->low / 100, (double)option->high / 100);
    *out = x;
    return 0;
}

static int parse_choice(const struct option *option, const char *text,
                        const struct option_source *from, uint64_t *out) {
    char all[128] = "";
    for (size_t i = 0; option->words[i]; i++) {
        if (strcmp(option->words[i], text) == 0) {
            *out = i;
            return 0;
        }
        const size_t length = strlen(all);
        snprintf(all + length, sizeof(all) - length, "%s%s", i ? ", " : "", option->words[i]);
    }
    const char *why = foreign_option_refusal(option->name, text);
    return error_set(from->err, ERR_INVALID, "%s: '%.64s' is not one of %s%s%s", from->label, text,
                     all, why ? ": " : "", why ? why : "");
}

static bool is_truth(const char *text, bool *out) {
    *out = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
    return *out || strcmp(text, "false") == 0 || strcmp(text, "0") == 0;
}

static int parse_bool(const char *text, const struct option_source *from, bool *out) {
    if (is_truth(text, out)) return 0;
    return error_set(from->err, ERR_INVALID, "%s: '%.64s' must be true or false", from->label,
                     text);
}

static int set_string(char **target, const char *text, const struct option_source *from) {
    if (!*text) return error_set(from->err, ERR_INVALID, "%s: must not be empty", from->label);
    char *copy = strdup(text);
    if (!copy) return error_set(from->err, ERR_NOMEM, "no memory for %s", from->label);
    free(*target);
    *target = copy;
    return 0;
}

/* Sets a list to the value of a flag.  *given: a flag has set it before; this is one more value
 * then. */
static int set_list(void *options, const struct option *option, bool *given, const char *value,
                    const struct option_source *from) {
    const char *const *former = (const void *)((const char *)options + option->offset);
    const bool is_first = !*given;
    *given = true;
    if (is_first || !*value) return option_set(options, option, value, from);
    const size_t size = strlen(*former) + strlen(value) + 2;
    char *both = malloc(size);
    if (!both) return error_set(from->err, ERR_NOMEM, "no memory for %s", from->label);
    snprintf(both, size, "%s,%s", *former, value);
    const int rc = option_set(options, option, both, from);
    free(both);
    return rc;
}

int option_set(void *options, const struct option *option, const char *text,
               const struct option_source *from) {
    void *target = (char *)options + option->offset;
    text = foreign_option_value(option->name, text);
    switch (option->kind) {
    case OPTION_STRING:
    case OPTION_LIST: return set_string(target, text, from);
    case OPTION_NUMBER:
    case OPTION_TOKENS:
    case OPTION_BYTES:
        if (!option->words || strcmp(text, *option->words) != 0)
            return parse_number(option, text, from, target);
        *(uint64_t *)target = UINT64_MAX;
        return 0;
    case OPTION_FRACTION: return parse_fraction(option, text, from, target);
    case OPTION_CHOICE: return parse_choice(option, text, from, target);
    case OPTION_BOOL: return parse_bool(text, from, target);
    }
    return error_set(from->err, ERR_INVALID, "%s: unknown kind", from->label);
}

const struct option *option_find(const struct option_table *table, const char *name,
                                 size_t length) {
    for (size_t i = 0; i < table->n; i++) {
        const struct option *option = &table->entries[i];
        if (strlen(option->name) == length && memcmp(option->name, name, length) == 0)
            return option;
    }
    return NULL;
}

int option_table_set_defaults(const struct option_table *table, void *options, struct error *err) {
    for (size_t i = 0; i < table->n; i++) {
        const struct option *option = &table->entries[i];
        if (!option->initial) continue;
        const int rc = option_set(options, option, option->initial,
                                  &(struct option_source){option->name, err});
        if (rc) return rc;
    }
    return 0;
}

/* A flag's name, up to its '=', with '-' for '_', which other servers write as well. */
struct flag_name {
    char text[LIKENESS_MAX_BYTES + 1];
    size_t length; /* 0: it is no flag, or longer than any */
};

static struct flag_name name_of_flag(const char *flag) {
    struct flag_name name = {.length = strncmp(flag, "--", 2) == 0 ? strcspn(flag + 2, "=") : 0};
    if (name.length >= sizeof(name.text)) name.length = 0;
    for (size_t i = 0; i < name.length; i++) name.text[i] = flag[2 + i] == '_' ? '-' : flag[2 + i];
    return name;
}

static bool is_negated(const struct flag_name *name) {
    return name->length > 3 && strncmp(name->text, "no-", 3) == 0;
}

const struct option *option_table_find_flag(const struct option_table *table, const char *flag) {
    const struct flag_name name = name_of_flag(flag);
    const struct option *option = option_find(table, name.text, name.length);
    if (option || !is_negated(&name)) return option;
    option = option_find(table, name.text + 3, name.length - 3);
    return option && option->kind == OPTION_BOOL ? option : NULL;
}

int option_table_refuse_flag(const struct option_table *table, const struct option_table *own,
                             const char *command, const char *flag, struct error *err) {
    const struct flag_name name = name_of_flag(flag);
    const int length = (int)strcspn(flag, "=");
    const size_t skipped = is_negated(&name) ? 3 : 0;
    const char *given = name.text + skipped;
    const size_t n = name.length - skipped;
    const char *meant = own ? option_hint(own, given, n) : NULL;
    if (meant) table = own;
    else meant = option_hint(table, given, n);
    if (!meant)
        return error_set(err, ERR_INVALID, "%.*s is not an option; see `quire %s --help`",
                         length < 66 ? length : 66, flag, command);
    const bool can_be_negated = option_find(table, meant, strlen(meant))->kind == OPTION_BOOL;
    return error_set(err, ERR_INVALID, "%.*s is not an option: --%s%s may be meant",
                     length < 66 ? length : 66, flag, skipped && can_be_negated ? "no-" : "",
                     meant);
}

int option_table_apply_flag(const struct option_table *table, void *options, bool *given, int argc,
                            char **argv, int *i, struct error *err) {
    const struct flag_name name = name_of_flag(argv[*i]);
    const char *equals = strchr(argv[*i], '=');
    const struct option *option = option_find(table, name.text, name.length);
    char label[80];
    snprintf(label, sizeof(label), "%.*s", (int)strcspn(argv[*i], "="), argv[*i]);
    const struct option_source from = {label, err};
    if (!option && is_negated(&name) && !equals) {
        option = option_find(table, name.text + 3, name.length - 3);
        if (option && option->kind == OPTION_BOOL)
            return option_set(options, option, "false", &from);
        option = NULL;
    }
    if (!option) return option_table_refuse_flag(table, NULL, "serve", argv[*i], err);
    const bool is_list = option->kind == OPTION_LIST, has_value = *i + 1 < argc;
    bool *const is_given = &given[option - table->entries];
    if (equals && is_list) return set_list(options, option, is_given, equals + 1, &from);
    if (equals) return option_set(options, option, equals + 1, &from);

    bool truth;
    /* What is neither true nor false is the next argument, such as MODEL. */
    if (option->kind == OPTION_BOOL && (!has_value || !is_truth(argv[*i + 1], &truth)))
        return option_set(options, option, "true", &from);
    if (!has_value) return error_set(err, ERR_INVALID, "%s needs a value", label);
    (*i)++;
    if (is_list) return set_list(options, option, is_given, argv[*i], &from);
    return option_set(options, option, argv[*i], &from);
}

void option_table_free(const struct option_table *table, void *target) {
    for (size_t i = 0; i < table->n; i++) {
        char **string = (char **)((char *)target + table->entries[i].offset);
        if (table->entries[i].kind != OPTION_STRING && table->entries[i].kind != OPTION_LIST)
            continue;
        free(*string);
        *string = NULL;
    }
}

int option_table_take(const struct option_table *table, void *target, int *argc, char **argv,
                      struct error *err) {
    bool *given = calloc(table->n, sizeof(*given));
    int kept = 0, rc = given ? option_table_set_defaults(table, target, err)
                             : error_set(err, ERR_NOMEM, "no memory for the options");
    for (int i = 0; i < *argc && !rc; i++) {
        if (option_table_find_flag(table, argv[i]))
            rc = option_table_apply_flag(table, target, given, *argc, argv, &i, err);
        else argv[kept++] = argv[i];
    }
    free(given);
    if (rc) option_table_free(table, target);
    else *argc = kept;
    return rc;
}

static void print_kind(FILE *out, const struct option *option) {
    switch (option->kind) {
    case OPTION_STRING: fputs("TEXT", out); break;
    case OPTION_LIST: fputs("TEXT,...", out); break;
    case OPTION_NUMBER: fputs("N", out); break;
    case OPTION_TOKENS: fputs("TOKENS", out); break;
    case OPTION_BYTES:
        fprintf(out, "BYTES%s%s", option->words ? "|" : "", option->words ? *option->words : "");
        break;
    case OPTION_FRACTION: fputs("X", out); break;
    case OPTION_BOOL: fputs("true|false", out); break;
    case OPTION_CHOICE:
        for (size_t i = 0; option->words[i]; i++)
            fprintf(out, "%s%s", i ? "|" : "", option->words[i]);
    }
}

void option_print(FILE *out, const struct option *option) {
    fprintf(out, "  --%s ", option->name);
    print_kind(out, option);
    fprintf(out, "\n        %s", option->help);
    if (option->initial) fprintf(out, " [%s]", option->initial);
    fputc('\n', out);
}

void option_table_print(FILE *out, const struct option_table *table) {
    for (size_t i = 0; i < table->n; i++) option_print(out, &table->entries[i]);
}
