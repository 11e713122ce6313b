/* refusal.c - see refusal.h. */
#include "server/hub/refusal.h"

#include <stddef.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/hub/name.h"
#include "server/hub/settings.h"
#include "server/hub/wire.h"

struct asked {
    const struct hub_answer *answer;
    const struct hub_settings *settings;
    const struct hub_name *name;
};

static int refuse_gated(const struct asked *a, struct error *err) {
    return error_set(err, ERR_INVALID,
                     "%.200s is gated: accept its licence on its page, %.150s/%.200s, and set "
                     "HF_TOKEN to a token of that account%s",
                     a->name->repository, a->settings->endpoint, a->name->repository,
                     *a->settings->token ? " (the one that is set may not read it)" : "");
}

/* Refuses a name that does not exist, or that this user may not see: the hub's answer is one. */
static int refuse_unknown(const struct asked *a, struct error *err) {
    return error_set(err, ERR_NOT_FOUND,
                     "the hub has no %.200s, or it is private%s: check the name; a private model "
                     "needs HF_TOKEN",
                     a->name->repository,
                     *a->settings->token ? " and the token may not read it" : "");
}

static int refuse_revision(const struct asked *a, struct error *err) {
    return error_set(err, ERR_NOT_FOUND,
                     "%.200s has no revision %.128s: its page, %.150s/%.200s, lists its branches "
                     "and tags",
                     a->name->repository, a->name->revision, a->settings->endpoint,
                     a->name->repository);
}

static int refuse_often(const struct asked *a, struct error *err) {
    return error_set(err, ERR_IO,
                     "the hub refuses more requests now (429): try again later%s; what has come "
                     "is kept",
                     *a->settings->token ? "" : ", or set HF_TOKEN, which it lets ask more often");
}

static int refuse_entry(const struct asked *a, struct error *err) {
    return error_set(err, ERR_IO,
                     "the hub lists a file of %.200s that it does not have: try again, the "
                     "repository may have changed",
                     a->name->repository);
}

static int refuse_token(const struct asked *a, struct error *err) {
    return error_set(err, ERR_INVALID,
                     "the hub does not know the token, and refuses it for every model: set "
                     "HF_TOKEN, or its file, to a new one of %.150s/settings/tokens, or to none",
                     a->settings->endpoint);
}

static int refuse_disabled(const struct asked *a, struct error *err) {
    return error_set(err, ERR_INVALID, "the hub has disabled %.200s: its page may say why",
                     a->name->repository);
}

/* The first row that fits counts.  status 0: any; code, or its message where it has no code, NULL:
 * any. */
static const struct {
    long status;
    const char *code;
    int (*refuse)(const struct asked *a, struct error *err);
} rows[] = {
    {0, "GatedRepo", refuse_gated},
    {0, "RepoNotFound", refuse_unknown},
    {0, "RevisionNotFound", refuse_revision},
    {0, "EntryNotFound", refuse_entry},
    {401, "Invalid credentials in Authorization header", refuse_token},
    {403, "Access to this resource is disabled.", refuse_disabled},
    {401, NULL, refuse_unknown},
    {403, NULL, refuse_gated},
    {404, NULL, refuse_unknown},
    {429, NULL, refuse_often},
};

int hub_refuse(const struct hub_answer *answer, const struct hub_settings *settings,
               const struct hub_name *name, struct error *err) {
    const struct asked asked = {answer, settings, name};
    const char *code = *answer->code ? answer->code : answer->message;
    if (*answer->trouble)
        return error_set(err, ERR_IO,
                         "%.100s cannot be reached: %.190s; look at the network, HF_ENDPOINT and "
                         "https_proxy, and try again: what has come is kept",
                         settings->endpoint, answer->trouble);
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        if ((rows[i].status == 0 || rows[i].status == answer->status) &&
            (!rows[i].code || strcmp(rows[i].code, code) == 0))
            return rows[i].refuse(&asked, err);
    return error_set(err, ERR_IO, "the hub %.100s answers with the status %ld: try again later",
                     settings->endpoint, answer->status);
}
