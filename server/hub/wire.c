/* wire.c - see wire.h. */
#include "server/hub/wire.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/error.h"
#include "server/hub/settings.h"
#include "server/settings/build_info.h"

/* A connection counts as broken after LOW_TIME_S seconds with fewer than LOW_BYTES a second. */
enum {
    REDIRECTS_MAX = 8,
    CONNECT_S = 15,
    LOW_TIME_S = 30,
    LOW_BYTES = 1000,
    BLOCK_BYTES = 512 << 10
};

struct hub_wire {
    CURL *curl;
    const struct hub_settings *settings;
    struct curl_slist *with_token; /* headers; NULL: there is no token */
    char why[CURL_ERROR_SIZE];
};

/* A request in progress. */
struct flight {
    CURL *curl;
    const struct hub_get *get;
    struct hub_answer *answer;
    struct error *err;
    uint64_t at;
    bool began;    /* the first bytes of a body that counts have come */
    uint64_t from; /* of the header Content-Range */
    bool has_from;
};

int hub_wire_open(struct hub_wire **out, const struct hub_settings *settings, struct error *err) {
    if (!settings->authorities && strncmp(settings->endpoint, "https:", 6) == 0)
        return error_set(err, ERR_NOT_FOUND,
                         "this system has no authorities of certificates: install ca-certificates, "
                         "or let SSL_CERT_FILE name a file of them");
    struct hub_wire *wire = calloc(1, sizeof(*wire));
    char header[HUB_TOKEN_MAX + 32];
    if (!wire || curl_global_init(CURL_GLOBAL_DEFAULT)) {
        free(wire);
        return error_set(err, ERR_NOMEM, "libcurl cannot be started");
    }
    wire->settings = settings;
    wire->curl = curl_easy_init();
    snprintf(header, sizeof(header), "Authorization: Bearer %s", settings->token);
    if (*settings->token) wire->with_token = curl_slist_append(NULL, header);
    if (!wire->curl || (*settings->token && !wire->with_token)) {
        hub_wire_close(wire);
        return error_set(err, ERR_NOMEM, "libcurl cannot be started");
    }
    *out = wire;
    return 0;
}

void hub_wire_close(struct hub_wire *wire) {
    if (!wire) return;
    curl_slist_free_all(wire->with_token);
    curl_easy_cleanup(wire->curl);
    curl_global_cleanup();
    free(wire);
}

/* ---- where the token may go ---- */

/* Copies a part of an address, in small letters, to out [256].  Returns false if it has none. */
static bool copy_part(char *out, CURLU *url, CURLUPart part) {
    char *text = NULL;
    if (curl_url_get(url, part, &text, CURLU_DEFAULT_PORT)) return false;
    const size_t n = strlen(text);
    for (size_t i = 0; i <= n && n < 256; i++)
        out[i] = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] + 32) : text[i];
    curl_free(text);
    return n < 256;
}

/* Where an address leads to. */
struct origin {
    char scheme[256], host[256], port[256];
};

static bool find_origin(struct origin *out, const char *address) {
    CURLU *url = curl_url();
    const bool found = url && !curl_url_set(url, CURLUPART_URL, address, 0) &&
                       copy_part(out->scheme, url, CURLUPART_SCHEME) &&
                       copy_part(out->host, url, CURLUPART_HOST) &&
                       copy_part(out->port, url, CURLUPART_PORT);
    curl_url_cleanup(url);
    return found;
}

static bool is_this_machine(const char *host) {
    struct in_addr address;
    return strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
           (inet_pton(AF_INET, host, &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

/* Adds the token to a request, if it may go to the address.  To this machine it goes without TLS,
 * and so past any proxy. */
static void add_token(struct hub_wire *wire, const char *address) {
    struct origin hub, to;
    if (!wire->with_token || !find_origin(&hub, wire->settings->endpoint) ||
        !find_origin(&to, address) || strcmp(hub.scheme, to.scheme) != 0 ||
        strcmp(hub.host, to.host) != 0 || strcmp(hub.port, to.port) != 0)
        return;
    const bool is_here = is_this_machine(to.host);
    if (!is_here && strcmp(to.scheme, "https") != 0) return;
    curl_easy_setopt(wire->curl, CURLOPT_HTTPHEADER, wire->with_token);
    if (is_here) curl_easy_setopt(wire->curl, CURLOPT_NOPROXY, "*");
}

/* ---- what comes ---- */

/* Returns the value of a header line, or NULL if it is another header; writes its length. */
static const char *header_value(const char *line, size_t size, const char *name, size_t *length) {
    const size_t n = strlen(name);
    if (size <= n || strncasecmp(line, name, n) != 0 || line[n] != ':') return NULL;
    const char *at = line + n + 1, *end = line + size;
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    while (end > at && strchr(" \t\r\n", end[-1])) end--;
    *length = (size_t)(end - at);
    return at;
}

/* Copies a header's value to out [size], as much as fits.  Returns false if the line is another
 * header. */
static bool copy_value(char *out, size_t size, const char *line, size_t n_line, const char *name) {
    size_t n;
    const char *value = header_value(line, n_line, name, &n);
    if (!value) return false;
    snprintf(out, size, "%.*s", (int)(n < size ? n : size - 1), value);
    return true;
}

/* Returns the number behind a parameter, such as t in "api";r=0;t=55; -1: there is none. */
static long parameter(const char *value, char name) {
    while ((value = strchr(value, ';'))) {
        value += 1 + strspn(value + 1, " ");
        const size_t n = value[0] == name && value[1] == '=' ? strspn(value + 2, "0123456789") : 0;
        if (n > 0 && n < 9) return strtol(value + 2, NULL, 10);
    }
    return -1;
}

static size_t take_header(char *line, size_t one, size_t size, void *ctx) {
    struct flight *f = ctx;
    struct hub_answer *answer = f->answer;
    char text[64];
    size_t n;
    unsigned long long from;
    copy_value(answer->code, sizeof(answer->code), line, size, "X-Error-Code");
    copy_value(answer->message, sizeof(answer->message), line, size, "X-Error-Message");
    if (copy_value(text, sizeof(text), line, size, "RateLimit") && parameter(text, 'r') == 0)
        answer->window_left = parameter(text, 't');
    const char *wait = header_value(line, size, "Retry-After", &n);
    if (wait && n > 0 && n < 9 && strspn(wait, "0123456789") >= n)
        answer->retry_after = strtol(wait, NULL, 10);
    if (copy_value(text, sizeof(text), line, size, "Content-Range")) {
        f->has_from = sscanf(text, "bytes %llu-", &from) == 1;
        f->from = f->has_from ? from : 0;
    }
    return one * size;
}

/* Refuses the part that was not asked for, and notes where the body begins. */
static int begin_body(struct flight *f, long status) {
    f->began = true;
    f->at = status == 206 ? f->get->from : 0;
    if (status == 206 && (!f->has_from || f->from != f->get->from))
        return error_set(f->err, ERR_IO, "the hub sends another part of a file than was asked for");
    return 0;
}

static size_t take_body(char *bytes, size_t one, size_t size, void *ctx) {
    struct flight *f = ctx;
    const size_t n = one * size;
    long status = 0;
    curl_easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206) return n; /* a page about an error */
    if (!f->began) f->answer->taken = begin_body(f, status);
    if (!f->answer->taken) f->answer->taken = f->get->take(f->get->ctx, f->at, bytes, n, f->err);
    f->at += n;
    return f->answer->taken ? 0 : n;
}

/* ---- a request ---- */

static void set_up(struct hub_wire *wire, struct flight *f, const char *url) {
    CURL *curl = wire->curl;
    char range[64], agent[64];
    curl_easy_reset(curl);
    snprintf(agent, sizeof(agent), "quire/%.40s", build_info.version);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, agent);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)LOW_TIME_S);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, (long)LOW_BYTES);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, (long)BLOCK_BYTES);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, wire->why);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, f);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, f);
    if (wire->settings->authorities)
        curl_easy_setopt(curl, CURLOPT_CAINFO, wire->settings->authorities);
    add_token(wire, url);
    if (f->get->end == 0) return;
    snprintf(range, sizeof(range), "%llu-%llu", (unsigned long long)f->get->from,
             (unsigned long long)f->get->end - 1);
    curl_easy_setopt(curl, CURLOPT_RANGE, range);
}

/* Writes where the answer redirects to, to url [HUB_URL_MAX]; *more: it does. */
static int follow(const struct hub_wire *wire, char *url, bool *more, struct error *err) {
    char *to = NULL;
    curl_easy_getinfo(wire->curl, CURLINFO_REDIRECT_URL, &to);
    *more = to != NULL;
    if (!to) return 0;
    const bool was_secure = strncasecmp(url, "https:", 6) == 0;
    if (strlen(to) >= HUB_URL_MAX ||
        (strncasecmp(to, "https:", 6) != 0 && (was_secure || strncasecmp(to, "http:", 5) != 0)))
        return error_set(err, ERR_INVALID,
                         "the hub redirects to an address that is not followed: it must be %s",
                         was_secure ? "https" : "http or https");
    snprintf(url, HUB_URL_MAX, "%s", to);
    return 0;
}

/* Sends the request to one address. */
static int fly(struct hub_wire *wire, struct flight *f, const char *url) {
    struct hub_answer *answer = f->answer;
    curl_off_t wait = 0;
    *answer = (struct hub_answer){.retry_after = -1, .window_left = -1};
    f->began = f->has_from = false;
    wire->why[0] = 0;
    set_up(wire, f, url);
    const CURLcode rc = curl_easy_perform(wire->curl);
    curl_easy_getinfo(wire->curl, CURLINFO_RESPONSE_CODE, &answer->status);
    if (answer->taken) return answer->taken;
    /* It may also be a date. */
    if (!curl_easy_getinfo(wire->curl, CURLINFO_RETRY_AFTER, &wait) && wait > 0)
        answer->retry_after = (long)wait;
    if (rc)
        snprintf(answer->trouble, sizeof(answer->trouble), "%.190s",
                 *wire->why ? wire->why : curl_easy_strerror(rc));
    return 0;
}

int hub_wire_get(struct hub_wire *wire, const struct hub_get *get, struct hub_answer *answer,
                 struct error *err) {
    struct flight f = {.curl = wire->curl, .get = get, .answer = answer, .err = err};
    char url[HUB_URL_MAX];
    bool more = true;
    int rc = 0;
    if (snprintf(url, sizeof(url), "%s", get->url) >= HUB_URL_MAX)
        return error_set(err, ERR_INVALID, "an address is longer than %d bytes", HUB_URL_MAX);
    for (int i = 0; more; i++) {
        if (i > REDIRECTS_MAX)
            return error_set(err, ERR_INVALID, "the hub redirects more than %d times",
                             REDIRECTS_MAX);
        rc = fly(wire, &f, url);
        if (rc || *answer->trouble) return rc;
        rc = follow(wire, url, &more, err);
        if (rc) return rc;
    }
    return 0;
}
