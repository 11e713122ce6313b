/* metrics_text.h - writes metrics in Prometheus' text format, each under all of its names.
 *
 * Thread: any.  Memory: the buffer's. */
#ifndef SERVER_OPS_METRICS_TEXT_H
#define SERVER_OPS_METRICS_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct buffer;
struct histogram;
struct histogram_bounds;

enum { METRIC_MAX_NAMES = 5 };

/* names: ours, then others, up to a NULL; those that begin with "vllm:" have its labels.  A name
 * that ends in _total is a counter's, and any other one a gauge's. */
struct metric {
    const char *names[METRIC_MAX_NAMES];
    const char *help;
};

struct metrics_text {
    struct buffer *out;
    const char *model_name; /* the label of vLLM's names */
};

/* A metric without labels of its own. */
struct metric_value {
    struct metric metric;
    double value;
};
void metrics_text_values(const struct metrics_text *text, const struct metric_value *values,
                         size_t n);

/* One metric with a sample for each value of a label. */
struct metric_point {
    const char *label;
    double value;
};
void metrics_text_points(const struct metrics_text *text, const struct metric *metric,
                         const char *label_name, const struct metric_point *points, size_t n);

/* Writes a histogram; the metric's type is not read. */
void metrics_text_histogram(const struct metrics_text *text, const struct metric *metric,
                            const struct histogram_bounds *bounds,
                            const struct histogram *histogram);

/* Writes a part of a metric that has more labels: HELP and TYPE, or samples.  labels: NULL, or
 * name="value",…, in which values are escaped. */
void metrics_text_head(const struct metrics_text *text, const char *name, const char *type,
                       const char *help);
void metrics_text_sample(const struct metrics_text *text, const char *name, const char *labels,
                         double value);
void metrics_text_buckets(const struct metrics_text *text, const char *name, const char *labels,
                          const struct histogram_bounds *bounds, const struct histogram *histogram);

#endif
