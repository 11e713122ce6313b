/* model_find.c - see model_find.h. */
#include "server/model_find.h"

#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/hub/name.h"
#include "server/hub/pull.h"
#include "server/settings/model_file.h"
#include "server/settings/model_kind.h"
#include "server/settings/options.h"

/* Fetches a model by its name. */
static int find_by_name(char path[PATH_MAX], const struct options *options,
                        const struct model_finding *finding, const struct hub_name *name,
                        struct error *err) {
    const struct hub_request request = {.name = *name,
                                        .has_weights = finding->has_weights,
                                        .offline = options->offline,
                                        .voice = finding->voice,
                                        .check = finding->check,
                                        .ctx = finding->ctx,
                                        .look = finding->look};
    struct error why = {0};
    const int rc = hub_pull(path, &request, &why);
    if (rc == ERR_NOT_FOUND && strcmp(options->model, name->repository) == 0)
        return error_set(err, rc, "%.120s is no folder here, and %.380s", options->model, why.text);
    return rc ? error_set(err, rc, "%s", why.text) : 0;
}

int model_find(char path[PATH_MAX], const struct options *options,
               const struct model_finding *finding, struct error *err) {
    struct hub_name name;
    const bool is_path = !options->model || access(options->model, F_OK) == 0;
    int rc = is_path ? ERR_NOT_FOUND : hub_name_read(&name, options->model, err);
    const bool is_name = !rc;
    if (is_name) rc = find_by_name(path, options, finding, &name, err);
    else if (rc == ERR_NOT_FOUND) rc = model_dir_choose(path, options->model, err);
    if (!rc && is_name && !*path) return 0; /* it was looked at */
    if (!rc) rc = model_kind_find_file(path, finding->has_weights, err);
    return rc ? rc : model_kind_check(path, finding->has_weights, err);
}
