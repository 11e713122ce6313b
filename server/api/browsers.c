/* browsers.c - see browsers.h. */
#include "server/api/browsers.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "server/http/http.h"
#include "server/json/api_error.h"

/* Tells whether the list has the text, whatever the case of its letters. */
static bool lists(const char *list, const char *text, size_t length) {
    if (strcmp(list, "*") == 0) return true;
    for (const char *at = list;; at++) {
        at += strspn(at, " ");
        const size_t n = strcspn(at, ",");
        if (n == length && length > 0 && strncasecmp(at, text, n) == 0) return true;
        at += n;
        if (!*at) return false;
    }
}

/* Returns the length of a Host's name without its port. */
static size_t name_length(const char *host) {
    if (*host != '[') return strcspn(host, ":");
    const char *end = strchr(host, ']');
    return end ? (size_t)(end - host) + 1 : strlen(host);
}

/* Tells whether the name is an address: no page can have one of its own resolve to it. */
static bool is_address(const char *host, size_t length) {
    return *host == '[' || strspn(host, "0123456789.") >= length;
}

static bool host_is_known(const struct browser_rules *rules, const char *host) {
    if (!host) return true;
    const size_t n = name_length(host);
    if (is_address(host, n) || lists("localhost", host, n)) return true;
    return rules->hosts ? lists(rules->hosts, host, n) : !rules->is_loopback;
}

/* Tells whether the page came from this server itself: scheme://HOST. */
static bool is_own(const char *origin, const char *host) {
    const char *authority = strstr(origin, "://");
    return authority && host && strcasecmp(authority + 3, host) == 0;
}

static bool origin_is_listed(const struct browser_rules *rules, const char *origin) {
    return origin && rules->origins && lists(rules->origins, origin, strlen(origin));
}

static void add_headers(const struct browser_rules *rules, struct http_exchange *exchange,
                        const char *origin) {
    const bool any = strcmp(rules->origins, "*") == 0;
    http_set_header(exchange, "Access-Control-Allow-Origin", any ? "*" : origin);
    http_set_header(exchange, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    http_set_header(exchange, "Vary", "Origin");
}

int browsers_check(const struct browser_rules *rules, struct http_exchange *exchange,
                   struct api_error *err) {
    const char *host = http_host(exchange), *origin = http_header(exchange, "Origin");
    if (!host_is_known(rules, host))
        return api_error_set(err, 403, "host_not_allowed", NULL,
                             "the server does not answer under this name: see --allowed-hosts");
    if (origin_is_listed(rules, origin)) {
        add_headers(rules, exchange, origin);
        return 0;
    }
    if (!origin || is_own(origin, host)) return 0;
    return api_error_set(err, 403, "origin_not_allowed", NULL,
                         "pages of this origin may not use the server: see --allowed-origins");
}

bool browsers_is_preflight(const struct browser_rules *rules, struct http_exchange *exchange) {
    if (strcmp(http_method(exchange), "OPTIONS") != 0) return false;
    if (!origin_is_listed(rules, http_header(exchange, "Origin"))) return false;
    if (!http_header(exchange, "Access-Control-Request-Method")) return false;
    http_set_header(exchange, "Access-Control-Allow-Methods", "GET, POST, DELETE");
    /* "*" stands for every header but this one (Fetch standard, CORS-safelisting). */
    http_set_header(exchange, "Access-Control-Allow-Headers", "*, Authorization");
    http_set_header(exchange, "Access-Control-Max-Age", "600");
    return true;
}
