/* service_links.c - see service_links.h. */
#include "server/settings/service_links.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>

bool service_link_is_address(const char *value) {
    static const char *const schemes[] = {"tcp://", "udp://", "sctp://"};
    for (size_t i = 0; i < sizeof(schemes) / sizeof(*schemes); i++) {
        const size_t length = strlen(schemes[i]);
        if (strncmp(value, schemes[i], length) != 0) continue;
        const char *colon = strrchr(value + length, ':');
        if (!colon || colon == value + length || !isdigit((unsigned char)colon[1])) return false;
        return colon[1 + strspn(colon + 1, "0123456789")] == '\0';
    }
    return false;
}

/* Tells whether the text, up to its end or '=', is one of the suffixes of PORT_<number>. */
static bool ends_as_port(const char *text) {
    static const char *const protocols[] = {"_TCP", "_UDP", "_SCTP"};
    static const char *const parts[] = {"=", "_PROTO=", "_PORT=", "_ADDR="};
    for (size_t p = 0; p < sizeof(protocols) / sizeof(*protocols); p++) {
        const size_t length = strlen(protocols[p]);
        if (strncmp(text, protocols[p], length) != 0) continue;
        for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
            if (strncmp(text + length, parts[i], strlen(parts[i])) == 0) return true;
    }
    return false;
}

/* Tells whether the name has _PORT_<number>_<protocol>, and no more than a part behind it. */
static bool names_a_port(const char *variable, const char *equals) {
    static const char mark[] = "_PORT_";
    for (const char *at = variable; (at = strstr(at, mark)) && at < equals; at++) {
        const char *number = at + strlen(mark);
        const size_t n_digits = strspn(number, "0123456789");
        if (n_digits > 0 && ends_as_port(number + n_digits)) return true;
    }
    return false;
}

static bool ends_with(const char *text, const char *end, const char *suffix) {
    const size_t length = strlen(suffix);
    return (size_t)(end - text) >= length && memcmp(end - length, suffix, length) == 0;
}

bool service_link_is(const char *variable) {
    const char *equals = strchr(variable, '=');
    if (!equals) return false;
    if (names_a_port(variable, equals) || ends_with(variable, equals, "_SERVICE_HOST")) return true;
    const char *port = strstr(variable, "_SERVICE_PORT");
    if (port && port < equals) return true;
    return ends_with(variable, equals, "_PORT") && service_link_is_address(equals + 1);
}
