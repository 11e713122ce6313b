/* doctor.c - see doctor.h. */
#include "server/terminal/doctor.h"

#include <stddef.h>
#include <string.h>

#include "server/json/buffer.h"
#include "server/settings/build_info.h"
#include "server/settings/option_json.h"
#include "server/settings/option_table.h"

static const char *const levels[] = {"ok", "note", "problem"};

static const struct option entries[] = {
    {"json", OPTION_BOOL, offsetof(struct doctor_plan, json), 0, 0, "false", NULL,
     "one JSON object in place of lines"},
};
static const struct option_table flags = {entries, sizeof(entries) / sizeof(*entries)};

/* Where findings go, line by line or as JSON. */
struct report {
    FILE *out;
    struct buffer json;
    bool is_json;
    enum finding_level worst;
};

const struct option_table *doctor_options(void) {
    return &flags;
}

int doctor_plan_read(struct doctor_plan *plan, int *argc, char **argv, struct error *err) {
    *plan = (struct doctor_plan){0};
    return option_table_take(&flags, plan, argc, argv, err);
}

void doctor_print_help(void) {
    puts(
        "usage: quire doctor [MODEL] [options of `quire serve`] [options below]\n"
        "\n"
        "Prints what this machine can do and what is missing.  A line is ok, a note or a problem;\n"
        "a problem keeps `quire serve` with these options from serving.  Exit status: 1 if there\n"
        "is one, else 0.\n");
    option_table_print(stdout, &flags);
}

static void add_json(struct report *report, const char *name, const struct finding *finding) {
    struct buffer *json = &report->json;
    buffer_puts(json, json->length > 0 ? ",\n{" : "{");
    option_json_member(json, "name", name);
    buffer_puts(json, ",");
    option_json_member(json, "level", levels[finding->level]);
    buffer_puts(json, ",");
    option_json_member(json, "text", finding->text);
    buffer_puts(json, ",");
    option_json_member(json, "remedy", finding->remedy);
    buffer_puts(json, "}");
}

static void add(struct report *report, const char *name, const struct finding *finding) {
    if (finding->level > report->worst) report->worst = finding->level;
    if (report->is_json) {
        add_json(report, name, finding);
        return;
    }
    fprintf(report->out, "%-8s %-13s %s\n", levels[finding->level], name, finding->text);
    if (finding->remedy[0]) fprintf(report->out, "%22s  -> %s\n", "", finding->remedy);
}

/* Adds what the build lacks, of which no check looks at the machine. */
static void add_gaps(struct report *report) {
    for (const struct build_gap *gap = build_info.gaps; gap->name; gap++) {
        struct finding finding = {.level = FINDING_NOTE};
        snprintf(finding.text, sizeof(finding.text), "not built in: %s", gap->without);
        snprintf(finding.remedy, sizeof(finding.remedy), "%s", gap->remedy);
        add(report, gap->name, &finding);
    }
}

bool doctor_run(const struct doctor *doctor, const struct doctor_plan *plan, FILE *out) {
    struct report report = {.out = out, .is_json = plan->json};
    for (const struct doctor_check *check = doctor_checks(); check->name; check++) {
        struct finding finding = {0};
        check->look(doctor, &finding);
        add(&report, check->name, &finding);
    }
    add_gaps(&report);
    if (plan->json)
        fprintf(out, "{\"status\":\"%s\",\n\"checks\":[\n%s\n]}\n", levels[report.worst],
                report.json.data ? report.json.data : "");
    buffer_fini(&report.json);
    return report.worst < FINDING_PROBLEM;
}
