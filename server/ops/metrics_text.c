/* metrics_text.c - see metrics_text.h. */
#include "server/ops/metrics_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/histogram.h"
#include "server/json/buffer.h"

enum { LABELS_BYTES = 256 };

/* Writes whole numbers without an exponent, as readers that are not Prometheus expect. */
static void write_number(struct buffer *out, double value) {
    const bool is_whole = value == floor(value) && fabs(value) < 1e15;
    buffer_printf(out, is_whole ? "%.0f" : "%.9g", value);
}

/* Writes a label's value: escaped, and without control characters. */
static void write_value(struct buffer *out, const char *value) {
    for (; *value; value++) {
        if (*value == '"' || *value == '\\') buffer_append(out, "\\", 1);
        buffer_append(out, (unsigned char)*value < ' ' ? "?" : value, 1);
    }
}

static bool is_vllm(const char *name) {
    return strncmp(name, "vllm:", 5) == 0;
}

/* Writes {…} with the labels of the name, those given, and le; nothing where there are none. */
static void write_labels(const struct metrics_text *text, const char *name, const char *labels,
                         const char *le) {
    const char *before = "{";
    if (is_vllm(name)) {
        buffer_puts(text->out, "{model_name=\"");
        write_value(text->out, text->model_name);
        buffer_puts(text->out, "\",engine=\"0\"");
        before = ",";
    }
    if (labels) {
        buffer_printf(text->out, "%s%s", before, labels);
        before = ",";
    }
    if (le) buffer_printf(text->out, "%sle=\"%s\"", before, le);
    if (is_vllm(name) || labels || le) buffer_puts(text->out, "}");
}

static void write_sample(const struct metrics_text *text, const char *name, const char *suffix,
                         const char *labels, const char *le, double value) {
    buffer_printf(text->out, "%s%s", name, suffix);
    write_labels(text, name, labels, le);
    buffer_puts(text->out, " ");
    write_number(text->out, value);
    buffer_puts(text->out, "\n");
}

void metrics_text_head(const struct metrics_text *text, const char *name, const char *type,
                       const char *help) {
    buffer_printf(text->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void metrics_text_sample(const struct metrics_text *text, const char *name, const char *labels,
                         double value) {
    write_sample(text, name, "", labels, NULL, value);
}

void metrics_text_buckets(const struct metrics_text *text, const char *name, const char *labels,
                          const struct histogram_bounds *bounds,
                          const struct histogram *histogram) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < bounds->n; i++) {
        char le[32];
        n += histogram->buckets[i];
        snprintf(le, sizeof(le), "%.10g", bounds->upper[i]);
        write_sample(text, name, "_bucket", labels, le, (double)n);
    }
    write_sample(text, name, "_bucket", labels, "+Inf", (double)histogram->n);
    write_sample(text, name, "_sum", labels, NULL, histogram->sum);
    write_sample(text, name, "_count", labels, NULL, (double)histogram->n);
}

/* Returns the metric's name i, or NULL behind the last. */
static const char *name_of(const struct metric *metric, size_t i) {
    return i < METRIC_MAX_NAMES ? metric->names[i] : NULL;
}

static const char *type_of(const char *name) {
    const char *last = strrchr(name, '_');
    return last && strcmp(last, "_total") == 0 ? "counter" : "gauge";
}

void metrics_text_points(const struct metrics_text *text, const struct metric *metric,
                         const char *label_name, const struct metric_point *points, size_t n) {
    const char *name;
    for (size_t i = 0; (name = name_of(metric, i)) != NULL; i++) {
        metrics_text_head(text, name, type_of(name), metric->help);
        for (size_t k = 0; k < n; k++) {
            char labels[LABELS_BYTES];
            snprintf(labels, sizeof(labels), "%s=\"%s\"", label_name, points[k].label);
            metrics_text_sample(text, name, labels, points[k].value);
        }
    }
}

void metrics_text_values(const struct metrics_text *text, const struct metric_value *values,
                         size_t n) {
    for (size_t k = 0; k < n; k++) {
        const struct metric *metric = &values[k].metric;
        const char *name;
        for (size_t i = 0; (name = name_of(metric, i)) != NULL; i++) {
            metrics_text_head(text, name, type_of(name), metric->help);
            metrics_text_sample(text, name, NULL, values[k].value);
        }
    }
}

void metrics_text_histogram(const struct metrics_text *text, const struct metric *metric,
                            const struct histogram_bounds *bounds,
                            const struct histogram *histogram) {
    const char *name;
    for (size_t i = 0; (name = name_of(metric, i)) != NULL; i++) {
        metrics_text_head(text, name, "histogram", metric->help);
        metrics_text_buckets(text, name, NULL, bounds, histogram);
    }
}
