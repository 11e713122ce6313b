/* command_model.c - see command_model.h. */
#include "server/command_model.h"

#include <stdio.h>
#include <unistd.h>

#include "engine/device/backend.h"
#include "server/devices.h"
#include "server/hub/transfer.h"
#include "server/model_find.h"
#include "server/model_support.h"
#include "server/settings/log.h"
#include "server/settings/options.h"

void say_on_stderr(void *ctx, const char *line) {
    (void)ctx;
    fprintf(stderr, "quire: %s\n", line);
}

void say_while_waiting(void *ctx, const char *line) {
    (void)ctx;
    fprintf(stderr, "%squire: %-14s\n", isatty(STDERR_FILENO) ? "\r" : "", line);
}

void say_nothing(void *ctx, const char *line) {
    (void)ctx, (void)line;
}

void say_in_log(void *ctx, const char *line) {
    (void)ctx;
    log_event(LOG_INFO, "%s", line);
}

int command_model_check(void *ctx, const char *path, bool has_weights, struct error *err) {
    struct backend *backend = NULL;
    int rc = has_weights ? devices_create(&backend, ctx, 0, false, err) : 0;
    if (rc) return rc;
    rc = model_support_check(path, backend, err);
    if (backend) backend->ops->destroy(backend);
    return rc;
}

int command_model_find(char out[PATH_MAX], const struct options *options, bool has_weights,
                       command_voice *say, const struct hub_look *look, struct error *err) {
    const bool is_drawn = say != say_nothing && isatty(STDERR_FILENO) &&
                          (say != say_in_log || options->log_format == LOG_TEXT);
    const struct hub_voice voice = {.say = say, .is_terminal = is_drawn};
    const struct model_finding finding = {.has_weights = has_weights,
                                          .voice = &voice,
                                          .check = command_model_check,
                                          .ctx = (void *)options,
                                          .look = look};
    return model_find(out, options, &finding, err);
}
