/* option_hint.c - see option_hint.h. */
#include "server/settings/option_hint.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/base/likeness.h"
#include "server/settings/option_table.h"
#include "server/settings/service_links.h"

static const char PREFIX[] = "QUIRE_";

static size_t part_length(const char *name) {
    return strcspn(name, "-");
}

/* Tells whether the name has all parts of another, in their order: max-seqs is of max-num-seqs. */
static bool has_parts(const char *name, const char *parts) {
    while (*parts) {
        const size_t n = part_length(parts);
        while (*name && (part_length(name) != n || strncmp(name, parts, n) != 0)) {
            name += part_length(name);
            name += *name == '-';
        }
        if (!*name) return false;
        name += n;
        name += *name == '-';
        parts += n;
        parts += *parts == '-';
    }
    return true;
}

/* Copies a name in the letters of the table. */
static void normalise(char *out, size_t size, const char *name, size_t length) {
    size_t n = 0;
    for (size_t i = 0; i < length && n + 1 < size; i++) {
        const char c = (char)tolower((unsigned char)name[i]);
        if (n > 0 || (c != '-' && c != '_')) out[n++] = c == '_' ? '-' : c;
    }
    out[n] = '\0';
}

const char *option_hint(const struct option_table *table, const char *name, size_t length) {
    char given[LIKENESS_MAX_BYTES + 1];
    const char *best = NULL, *longer = NULL;
    if (length > LIKENESS_MAX_BYTES) return NULL;
    normalise(given, sizeof(given), name, length);
    unsigned least = likeness_most(given) + 1;
    for (size_t i = 0; i < table->n; i++) {
        const char *candidate = table->entries[i].name;
        const unsigned distance = likeness_distance(given, candidate);
        if (distance < least) {
            best = candidate;
            least = distance;
        }
        if (!longer && strchr(given, '-') && has_parts(candidate, given)) longer = candidate;
    }
    return best ? best : longer;
}

void option_variable(char *out, size_t size, const char *name) {
    snprintf(out, size, "%s%s", PREFIX, name);
    for (char *at = out; *at; at++) *at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
}

const char *option_hint_variable(const struct option_table *table, const char *variable) {
    const size_t length = strcspn(variable, "="), n = strlen(PREFIX);
    if (length <= n || strncasecmp(variable, PREFIX, n) != 0) return NULL;
    if (service_link_is(variable)) return NULL;
    for (size_t i = 0; i < table->n; i++) {
        char name[LIKENESS_MAX_BYTES + 1];
        option_variable(name, sizeof(name), table->entries[i].name);
        if (strlen(name) == length && memcmp(name, variable, length) == 0) return NULL;
    }
    return option_hint(table, variable + n, length - n);
}
