/* main.c - the program: finds the subcommand, the model and the backend.  The only file that exits.
 *
 * Exit status: 0 done or stopped by a signal, 1 failed, 2 called wrongly, 130 a conversation at the
 * terminal was stopped by Ctrl-C.
 *
 * Thread: main.  Memory: everything is freed before the end. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/likeness.h"
#include "engine/device/backend.h"
#include "server/bench/bench.h"
#include "server/command_model.h"
#include "server/descriptors.h"
#include "server/devices.h"
#include "server/early_signals.h"
#include "server/health_command.h"
#include "server/hub/commands.h"
#include "server/hub/pull.h"
#include "server/hub/settings.h"
#include "server/hub/transfer.h"
#include "server/info_command.h"
#include "server/json/buffer.h"
#include "server/quantize_command.h"
#include "server/serve_command.h"
#include "server/settings/api_keys.h"
#include "server/settings/build_info.h"
#include "server/settings/foreign_options.h"
#include "server/settings/log.h"
#include "server/settings/model_file.h"
#include "server/settings/option_json.h"
#include "server/settings/options.h"
#include "server/settings/options_help.h"
#include "server/terminal/chat_command.h"
#include "server/terminal/doctor.h"
#include "server/terminal/run_command.h"
#include "server/terminal/talk.h"
#include "server/tokenize_command.h"
#include "server/tune/tune.h"

extern char **environ;

enum { STATUS_OK = 0, STATUS_FAILED = 1, STATUS_USAGE = 2, STATUS_INTERRUPTED = 130 };

struct subcommand {
    const char *name, *arguments, *help;
    int (*run)(int argc, char **argv);       /* what follows the name */
    bool takes_settings;                     /* the options of `quire serve` */
    const struct option_table *(*own)(void); /* NULL: it has no options of its own */
};

/* Says why a command has failed, if it has.  Returns its exit status. */
static int end_command(int rc, const struct error *err) {
    if (rc) fprintf(stderr, "quire: %s\n", err->text);
    return rc ? STATUS_FAILED : STATUS_OK;
}

static int refuse_usage(const struct error *err) {
    fprintf(stderr, "quire: %s\n", err->text);
    return STATUS_USAGE;
}

/* Loads the settings of a command, whose own options have been taken out of argv. */
static int load_options(struct options *options, const char *name, const struct option_table *own,
                        int argc, char **argv, int *status) {
    const struct options_command command = {name, 1, own};
    struct error err = {0};
    if (options_load(options, &command, argc, argv, environ, &err)) {
        *status = refuse_usage(&err);
        return -1;
    }
    if (!options->help) return 0;
    options_help_print(stdout, options->help);
    options_fini(options);
    *status = STATUS_OK;
    return -1;
}

static int run_serve(int argc, char **argv) {
    struct options options;
    struct error err = {0};
    int status;
    early_signals_take();
    if (load_options(&options, "serve", NULL, argc, argv, &status)) return status;
    if (!api_keys_resolve(&options, &err))
        return serve_command(&options) ? STATUS_FAILED : STATUS_OK;
    options_fini(&options);
    return refuse_usage(&err);
}

static bool wants_help(int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

/* What a command does with a plan of its own, the other options, and a backend. */
typedef int (*backend_work)(const void *plan, const struct options *options, const char *model_dir,
                            struct backend *backend, struct error *err);

static int refuse_replicas(const struct options *options, struct error *err) {
    if (options->data_parallel_size == 1) return 0;
    return error_set(err, ERR_INVALID,
                     "--data-parallel-size must be 1 here: only `quire serve` has replicas");
}

static int run_on_backend(backend_work work, const void *plan, const char *name,
                          const struct option_table *own, int argc, char **argv) {
    struct options options;
    struct backend *backend = NULL;
    struct error err = {0};
    char model_dir[PATH_MAX];
    int status;
    if (load_options(&options, name, own, argc, argv, &status)) return status;
    int rc = refuse_replicas(&options, &err);
    if (!rc)
        rc = command_model_find(model_dir, &options, options.load_format != LOAD_DUMMY,
                                say_on_stderr, NULL, &err);
    if (!rc) rc = devices_create(&backend, &options, 0, true, &err);
    if (!rc) {
        rc = work(plan, &options, model_dir, backend, &err);
        backend->ops->destroy(backend);
    }
    options_fini(&options);
    return end_command(rc, &err);
}

static int bench_work(const void *plan, const struct options *options, const char *model_dir,
                      struct backend *backend, struct error *err) {
    return bench_run(plan, options, model_dir, backend, err);
}

static int run_bench(int argc, char **argv) {
    struct bench_plan plan;
    struct error err = {0};
    if (wants_help(argc, argv)) {
        bench_print_help();
        return STATUS_OK;
    }
    if (bench_plan_read(&plan, &argc, argv, &err)) return refuse_usage(&err);
    const int status = run_on_backend(bench_work, &plan, "bench", bench_options(), argc, argv);
    bench_plan_fini(&plan);
    return status;
}

static int tune_work(const void *plan, const struct options *options, const char *model_dir,
                     struct backend *backend, struct error *err) {
    return tune_run(plan, options, model_dir, backend, err);
}

static int run_tune(int argc, char **argv) {
    struct tune_plan plan;
    struct error err = {0};
    if (wants_help(argc, argv)) {
        tune_print_help();
        return STATUS_OK;
    }
    if (tune_plan_read(&plan, &argc, argv, &err)) return refuse_usage(&err);
    const int status = run_on_backend(tune_work, &plan, "tune", tune_options(), argc, argv);
    tune_plan_fini(&plan);
    return status;
}

/* What `quire info` is told, and how it ended. */
struct info_call {
    struct info_plan plan;
    struct options options;
    int rc;
    struct error err;
};

/* Implements hub_look.look: prints what the model is. */
static void tell_model(void *ctx, const char *part, const char *path) {
    struct info_call *call = ctx;
    struct backend *backend = NULL;
    call->rc = devices_create(&backend, &call->options, 0, true, &call->err);
    if (call->rc) return;
    call->rc = info_command(&call->plan, &call->options, part, path, backend, stdout, &call->err);
    backend->ops->destroy(backend);
}

static int run_info(int argc, char **argv) {
    struct info_call call = {0};
    const struct hub_look look = {tell_model, &call};
    char model_dir[PATH_MAX];
    int status;
    if (wants_help(argc, argv)) {
        info_print_help();
        return STATUS_OK;
    }
    if (info_plan_read(&call.plan, &argc, argv, &call.err)) return refuse_usage(&call.err);
    if (load_options(&call.options, "info", info_options(), argc, argv, &status)) return status;
    const struct options *options = &call.options;
    struct error err = {0};
    int rc = refuse_replicas(options, &err);
    if (!rc)
        rc = command_model_find(model_dir, options, options->load_format != LOAD_DUMMY,
                                say_on_stderr, &look, &err);
    if (rc) call.rc = rc, call.err = err;
    else if (*model_dir) tell_model(&call, model_dir, model_dir);
    options_fini(&call.options);
    return end_command(call.rc, &call.err);
}

static int run_tokenize(int argc, char **argv) {
    struct options options;
    struct error err = {0};
    char model_dir[PATH_MAX];
    int status;
    if (wants_help(argc, argv)) {
        tokenize_print_help();
        return STATUS_OK;
    }
    if (load_options(&options, "tokenize", NULL, argc, argv, &status)) return status;
    int rc = command_model_find(model_dir, &options, false, say_on_stderr, NULL, &err);
    if (!rc) rc = tokenize_command(model_dir, stdin, stdout, &err);
    options_fini(&options);
    return end_command(rc, &err);
}

static int run_quantize(int argc, char **argv) {
    struct quantize_options plan;
    struct options options;
    struct error err = {0};
    char model_dir[PATH_MAX];
    int status;
    if (wants_help(argc, argv)) {
        quantize_print_help();
        return STATUS_OK;
    }
    if (quantize_options_read(&plan, &argc, argv, &err)) return refuse_usage(&err);
    if (load_options(&options, "quantize", quantize_option_table(), argc, argv, &status)) {
        quantize_options_fini(&plan);
        return status;
    }
    options.device = DEVICE_CPU; /* what it writes may be served elsewhere */
    int rc = command_model_find(model_dir, &options, true, say_on_stderr, NULL, &err);
    if (!rc) rc = quantize_command(&plan, model_dir, stdout, &err);
    quantize_options_fini(&plan);
    options_fini(&options);
    return end_command(rc, &err);
}

static int run_pull(int argc, char **argv) {
    const struct hub_voice voice = {.say = say_on_stderr, .is_terminal = isatty(STDERR_FILENO)};
    struct options options;
    struct hub_plan plan;
    struct error err = {0};
    int status;
    if (wants_help(argc, argv)) {
        hub_pull_print_help();
        return STATUS_OK;
    }
    if (hub_plan_read(&plan, hub_pull_options(), argc, argv, &err)) return refuse_usage(&err);
    if (load_options(&options, "pull", NULL, 0, NULL, &status)) return status; /* QUIRE_DEVICE */
    const int rc = hub_pull_command(&plan, &voice, command_model_check, &options, stdout, &err);
    options_fini(&options);
    return end_command(rc, &err);
}

static int run_list(int argc, char **argv) {
    struct error err = {0};
    if (wants_help(argc, argv)) {
        hub_list_print_help();
        return STATUS_OK;
    }
    if (argc > 0) {
        error_set(&err, ERR_INVALID, "'%.64s' is not expected here: `quire list` takes nothing",
                  argv[0]);
        return refuse_usage(&err);
    }
    const int rc = hub_list_command(stdout, &err);
    return end_command(rc, &err);
}

static int run_rm(int argc, char **argv) {
    struct hub_plan plan;
    struct error err = {0};
    if (wants_help(argc, argv)) {
        hub_rm_print_help();
        return STATUS_OK;
    }
    if (hub_plan_read(&plan, hub_rm_options(), argc, argv, &err)) return refuse_usage(&err);
    const int rc = hub_rm_command(&plan, stdin, stdout, &err);
    return end_command(rc, &err);
}

/* What `quire run` and `quire chat` differ in. */
struct talk_command {
    const char *name;
    const struct option_table *(*own)(void);
    void (*print_help)(void);
    bool has_prompt;
};

static int talk(const struct talk_command *command, const struct talk_plan *plan,
                struct options *options, struct error *err) {
    const struct talk_engine engine = {serve_privately, options};
    const bool is_alone = plan->url && command->has_prompt && !options->words[1];
    const char *model = plan->url && !is_alone ? options->words[0] : NULL,
               *prompt = options->words[is_alone ? 0 : 1];
    if (plan->url) {
        const int rc = api_keys_resolve(options, err);
        if (rc) return rc;
    }
    if (!command->has_prompt) return chat_command(plan, options, model, &engine, err);
    return run_command(plan, options, model, prompt, &engine, err);
}

static int run_talk(const struct talk_command *command, int argc, char **argv) {
    struct talk_plan plan;
    struct options options;
    struct error err = {0};
    if (wants_help(argc, argv)) {
        command->print_help();
        return STATUS_OK;
    }
    if (talk_plan_read(&plan, command->own(), &argc, argv, &err)) return refuse_usage(&err);
    setenv("QUIRE_LOG_LEVEL", "warn", 0); /* of a private server: lines would mix with answers */
    const struct options_command called = {command->name, 1 + command->has_prompt, command->own()};
    int rc = options_load(&options, &called, argc, argv, environ, &err);
    if (rc) {
        talk_plan_fini(&plan);
        return refuse_usage(&err);
    }
    rc = talk(command, &plan, &options, &err);
    if (rc && rc != ERR_STOPPED) fprintf(stderr, "quire: %s\n", err.text);
    talk_plan_fini(&plan);
    options_fini(&options);
    return rc == ERR_STOPPED ? STATUS_INTERRUPTED : rc ? STATUS_FAILED : STATUS_OK;
}

static int run_run(int argc, char **argv) {
    static const struct talk_command command = {"run", run_options, run_print_help, true};
    return run_talk(&command, argc, argv);
}

static int run_chat(int argc, char **argv) {
    static const struct talk_command command = {"chat", chat_options, chat_print_help, false};
    return run_talk(&command, argc, argv);
}

/* Writes what a device says of itself, or why it cannot be opened. */
static void look_at_device(struct doctor_device *out, const struct options *options,
                           int (*create)(struct backend **out, const struct options *options,
                                         uint32_t replica, struct error *err)) {
    struct backend *backend = NULL;
    struct error err = {0};
    out->rc = create(&backend, options, 0, &err);
    snprintf(out->text, sizeof(out->text), "%.399s", out->rc ? err.text : backend->description);
    if (backend) backend->ops->destroy(backend);
}

static int run_doctor(int argc, char **argv) {
    struct hub_settings settings;
    struct doctor_plan plan;
    struct options options;
    struct error err = {0};
    char model_dir[PATH_MAX];
    int status;
    if (wants_help(argc, argv)) {
        doctor_print_help();
        return STATUS_OK;
    }
    if (doctor_plan_read(&plan, &argc, argv, &err)) return refuse_usage(&err);
    if (load_options(&options, "doctor", doctor_options(), argc, argv, &status)) return status;
    struct doctor doctor = {.options = &options, .cache = settings.cache};
    doctor.hub.rc = hub_settings_read(&settings, &err);
    snprintf(doctor.hub.text, sizeof(doctor.hub.text), "%.399s", err.text);
    look_at_device(&doctor.cpu, &options, devices_create_cpu);
    doctor.lacking_kernels = devices_lack_kernels(&options);
    look_at_device(&doctor.gpu, &options, devices_create_cuda);
    /* A model of the hub that is not here is a problem, too: nothing is fetched to look at it. */
    options.offline = true;
    doctor.model.rc = command_model_find(model_dir, &options, options.load_format != LOAD_DUMMY,
                                         say_nothing, NULL, &err);
    snprintf(doctor.model.text, sizeof(doctor.model.text), "%.399s",
             doctor.model.rc ? err.text : model_dir);
    status = doctor_run(&doctor, &plan, stdout) ? STATUS_OK : STATUS_FAILED;
    options_fini(&options);
    return status;
}

static int run_health(int argc, char **argv) {
    struct options options;
    struct error err = {0};
    int status;
    if (wants_help(argc, argv)) {
        health_print_help();
        return STATUS_OK;
    }
    if (load_options(&options, "health", NULL, argc, argv, &status)) return status;
    const int rc = health_command(&options, &err);
    options_fini(&options);
    return end_command(rc, &err);
}

static int run_version(int argc, char **argv) {
    char model_dir[PATH_MAX];
    struct error err = {0};
    if (argc > 0 && !wants_help(argc, argv)) {
        error_set(&err, ERR_INVALID, "'%.64s' is not expected here: `quire version` takes nothing",
                  argv[0]);
        return refuse_usage(&err);
    }
    printf("quire %s, commit %s\n", build_info.version, build_info.commit);
    for (const struct build_backend *backend = build_info.backends; backend->name; backend++) {
        printf("backend %s, kernels for", backend->name);
        for (size_t i = 0; backend->kernels[i]; i++)
            printf("%s %s", i ? "," : "", backend->kernels[i]);
        putchar('\n');
    }
    for (const struct build_gap *gap = build_info.gaps; gap->name; gap++)
        printf("without %s: %s; to get it: %s\n", gap->name, gap->without, gap->remedy);
    if (model_dir_choose(model_dir, NULL, &err)) puts(err.text);
    else printf("default model %s\n", model_dir);
    return STATUS_OK;
}

static int run_help(int argc, char **argv);

static const struct subcommand commands[] = {
    {"serve", "[MODEL] [options]", "answer the OpenAI API over HTTP", run_serve, true, NULL},
    {"run", "MODEL \"prompt\" [options]", "print the answer to one prompt", run_run, true,
     run_options},
    {"chat", "[MODEL] [options]", "talk with a model at this terminal", run_chat, true,
     chat_options},
    {"bench", "[MODEL] [options]", "measure the engine without HTTP", run_bench, true,
     bench_options},
    {"tune", "[MODEL] [options]", "find patterns for sparse prefill, filters for offload", run_tune,
     true, tune_options},
    {"info", "[MODEL] [options]", "print formats, sizes and context of a model", run_info, true,
     info_options},
    {"quantize", "[MODEL] options", "write a model with weights of fewer bits", run_quantize, true,
     quantize_option_table},
    {"tokenize", "[MODEL]", "print the tokens of the text on standard input", run_tokenize, true,
     NULL},
    {"pull", "NAME [options]", "fetch a model of the hub, such as OWNER/NAME", run_pull, false,
     hub_pull_options},
    {"list", "", "list the models that were fetched, with their sizes", run_list, false, NULL},
    {"rm", "NAME [--yes]", "remove a model that was fetched", run_rm, false, hub_rm_options},
    {"health", "[options]", "ask the server of these settings whether it works", run_health, true,
     NULL},
    {"doctor", "[options]", "print what this machine can do, what is missing", run_doctor, true,
     doctor_options},
    {"version", "", "print version, commit and backends", run_version, false, NULL},
    {"help", "[--json]", "print this; --json: with all options", run_help, false, NULL},
};

static void print_commands(FILE *out) {
    fputs("usage: quire COMMAND\n\n", out);
    for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
        char words[64];
        snprintf(words, sizeof(words), "%s %s", commands[i].name, commands[i].arguments);
        fprintf(out, "  %-28s %s\n", words, commands[i].help);
    }
    fputs("\n`quire COMMAND --help` lists the options of each.\n", out);
}

/* Writes the commands and the options, from which the manual page and completions are made. */
static int print_json(void) {
    struct buffer out = {0};
    buffer_puts(&out, "{");
    option_json_member(&out, "version", build_info.version);
    buffer_puts(&out, ",\n\"settings\":");
    option_json_table(&out, options_table());
    buffer_puts(&out, ",\n\"groups\":");
    options_help_json(&out);
    buffer_puts(&out, ",\n\"spellings\":");
    foreign_options_json(&out);
    buffer_puts(&out, ",\n\"usual\":");
    foreign_options_usual_json(&out);
    buffer_puts(&out, ",\n\"values\":");
    foreign_options_values_json(&out);
    buffer_puts(&out, ",\n\"commands\":[");
    for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
        const struct subcommand *command = &commands[i];
        buffer_puts(&out, i ? ",\n{" : "\n{");
        option_json_member(&out, "name", command->name);
        buffer_puts(&out, ",");
        option_json_member(&out, "arguments", command->arguments);
        buffer_puts(&out, ",");
        option_json_member(&out, "help", command->help);
        buffer_printf(&out, ",\"takes_settings\":%s,\"options\":",
                      command->takes_settings ? "true" : "false");
        option_json_table(&out, command->own ? command->own() : NULL);
        buffer_puts(&out, "}");
    }
    buffer_puts(&out, "]}\n");
    const bool is_written = !out.failed && fwrite(out.data, 1, out.length, stdout) == out.length;
    buffer_fini(&out);
    return is_written ? STATUS_OK : STATUS_FAILED;
}

/* Returns the command that is likely meant, by its spelling or by what another program calls it. */
static const char *command_meant(const char *name) {
    static const char *const others[][2] = {
        {"ls", "list"},          {"show", "info"},    {"ps", "health"},    {"status", "health"},
        {"start", "serve"},      {"launch", "serve"}, {"complete", "run"}, {"generate", "run"},
        {"download", "pull"},    {"remove", "rm"},    {"delete", "rm"},    {"benchmark", "bench"},
        {"convert", "quantize"}, {"check", "doctor"}};
    const char *meant = NULL;
    for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
        if (likeness_distance(name, commands[i].name) <= likeness_most(commands[i].name))
            meant = commands[i].name;
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        if (strcmp(name, others[i][0]) == 0) meant = others[i][1];
    return meant;
}

/* Says that there is no such command, and what is likely meant. */
static void refuse_command(const char *name) {
    const char *meant = command_meant(name);
    fprintf(stderr, "quire: there is no command '%.64s'", name);
    if (meant) fprintf(stderr, ": %s may be meant\n\n", meant);
    else if (*name == '-' || strchr(name, '/')) fputs(": `quire serve` takes it\n\n", stderr);
    else fputs("\n\n", stderr);
}

static const struct subcommand *find_command(const char *name) {
    for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static int run_help(int argc, char **argv) {
    char *help[] = {"--help"};
    const struct subcommand *command = argc > 0 ? find_command(argv[0]) : NULL;
    const bool is_unknown = argc > 0 && *argv[0] != '-' && !command;
    if (argc > 0 && strcmp(argv[0], "--json") == 0) return print_json();
    if (command && command->run != run_help) return command->run(1, help);
    if (is_unknown) refuse_command(argv[0]);
    print_commands(is_unknown ? stderr : stdout);
    return is_unknown ? STATUS_USAGE : STATUS_OK;
}

/* Returns the status of a command, or of its output, if that could not be written. */
static int end_output(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    fprintf(stderr, "quire: standard output: %s\n", strerror(errno));
    return status ? status : STATUS_FAILED;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    descriptors_hold_standard();
    if (getpid() == 1) early_signals_take(); /* for any command: the kernel would drop them */
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    if (strcmp(name, "--version") == 0) name = "version";
    const struct subcommand *command = find_command(name);
    if (command && command->run != run_serve) warn_of_variables(say_on_stderr);
    if (command) return end_output(command->run(argc - 2, argv + 2));
    if (*name) refuse_command(name);
    print_commands(stderr);
    return STATUS_USAGE;
}
