/* settings.c - see settings.h. */
#include "server/hub/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/file.h"

/* Returns a variable's text, or NULL if it is not set or empty. */
static const char *variable(const char *name) {
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

static int read_endpoint(struct hub_settings *out, struct error *err) {
    const char *text = variable("HF_ENDPOINT");
    if (!text) text = "https://huggingface.co";
    size_t n = strlen(text);
    while (n > 0 && text[n - 1] == '/') n--;
    if (n > HUB_ENDPOINT_MAX || strpbrk(text, "@?# \r\n") ||
        (strncmp(text, "https://", 8) != 0 && strncmp(text, "http://", 7) != 0))
        return error_set(err, ERR_INVALID,
                         "HF_ENDPOINT: '%.100s' must be the address of a hub, such as "
                         "https://huggingface.co",
                         text);
    memcpy(out->endpoint, text, n);
    out->endpoint[n] = 0;
    return 0;
}

/* Writes a path, and what lies below it unless that is NULL.  A ~ is the user's folder.
 * ERR_INVALID: the whole is too long. */
static int join(char out[PATH_MAX], const char *folder, const char *name, struct error *err) {
    const char *user =
        folder[0] == '~' && (!folder[1] || folder[1] == '/') ? variable("HOME") : NULL;
    const int n = snprintf(out, PATH_MAX, "%s%s%s%s", user ? user : "", folder + (user != NULL),
                           name ? "/" : "", name ? name : "");
    if (n >= 0 && n < PATH_MAX) return 0;
    return error_set(err, ERR_INVALID, "the path of the hub's cache is too long");
}

/* Writes the folder of cache and token. */
static int find_home(char out[PATH_MAX], struct error *err) {
    const char *home = variable("HF_HOME"), *caches = variable("XDG_CACHE_HOME"),
               *user = variable("HOME");
    if (home) return join(out, home, NULL, err);
    if (caches) return join(out, caches, "huggingface", err);
    if (user) return join(out, user, ".cache/huggingface", err);
    return error_set(err, ERR_INVALID,
                     "there is no place for models: set HF_HOME, or HOME, to a folder");
}

static int find_cache(struct hub_settings *out, const char *home, struct error *err) {
    const char *given = variable("HF_HUB_CACHE");
    if (!given) given = variable("HUGGINGFACE_HUB_CACHE");
    return given ? join(out->cache, given, NULL, err) : join(out->cache, home, "hub", err);
}

/* Takes a token without the white space around it.  what: its source. */
static int take_token(struct hub_settings *out, const char *text, const char *what,
                      struct error *err) {
    text += strspn(text, " \t\r\n");
    const size_t n = strcspn(text, " \t\r\n");
    bool is_plain = n <= HUB_TOKEN_MAX && !text[n + strspn(text + n, " \t\r\n")];
    for (size_t i = 0; i < n; i++) is_plain = is_plain && text[i] > 0x20 && text[i] < 0x7f;
    if (!is_plain)
        return error_set(err, ERR_INVALID,
                         "%.200s: a token is one word of at most %d letters, digits and signs",
                         what, HUB_TOKEN_MAX);
    memcpy(out->token, text, n);
    out->token[n] = 0;
    return 0;
}

static int read_token(struct hub_settings *out, const char *home, struct error *err) {
    static const char *const names[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};
    char path[PATH_MAX];
    char *text = NULL;
    size_t size;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (variable(names[i])) return take_token(out, variable(names[i]), names[i], err);
    const char *given = variable("HF_TOKEN_PATH");
    int rc = given ? join(path, given, NULL, err) : join(path, home, "token", err);
    if (!rc) rc = file_read(&text, &size, path, 4096, err);
    if (rc == ERR_NOT_FOUND) return 0;
    if (!rc) rc = take_token(out, text, path, err);
    free(text);
    return rc;
}

/* Returns where the authorities of certificates are. */
static const char *find_authorities(void) {
    static const char *const names[] = {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"};
    /* Of Debian and Arch, Fedora, openSUSE, and older ones.  libcurl knows that of its own system,
     * and a wheel runs on others. */
    static const char *const places[] = {
        "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
        "/etc/ssl/cert.pem"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (variable(names[i])) return variable(names[i]);
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++)
        if (access(places[i], R_OK) == 0) return places[i];
    return NULL;
}

static bool is_true(const char *text) {
    static const char *const words[] = {"1", "on", "yes", "true"};
    for (size_t i = 0; text && i < sizeof(words) / sizeof(*words); i++)
        if (strcasecmp(text, words[i]) == 0) return true;
    return false;
}

int hub_settings_read(struct hub_settings *out, struct error *err) {
    char home[PATH_MAX];
    *out = (struct hub_settings){.authorities = find_authorities(),
                                 .offline = is_true(variable("HF_HUB_OFFLINE"))};
    int rc = read_endpoint(out, err);
    if (!rc) rc = find_home(home, err);
    if (!rc) rc = find_cache(out, home, err);
    return rc ? rc : read_token(out, home, err);
}
