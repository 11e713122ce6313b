/* test_trace_context.c - a legal traceparent is continued, any other begins a trace of its own. */
#include <string.h>

#include "server/otlp/trace_context.h"
#include "tests/test.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN "00f067aa0ba902b7"

TEST(a_legal_header_is_continued) {
    static const struct {
        const char *header;
        bool sampled;
    } cases[] = {{"00-" TRACE "-" SPAN "-01", true},
                 {"00-" TRACE "-" SPAN "-00", false},
                 {"00-" TRACE "-" SPAN "-0a", false},
                 {"00-" TRACE "-" SPAN "-0b", true},
                 {"cc-" TRACE "-" SPAN "-01", true}, /* a later version */
                 {"cc-" TRACE "-" SPAN "-01-what-it-adds", true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct trace_context trace;
        trace_context_begin(&trace, cases[i].header);
        assert_string_equal(trace.trace_id, TRACE);
        assert_string_equal(trace.parent_id, SPAN);
        assert_int_equal(strlen(trace.span_id), SPAN_ID_CHARS);
        assert_string_not_equal(trace.span_id, SPAN);
        assert_int_equal(trace.sampled, cases[i].sampled);
    }
}

TEST(any_other_begins_a_trace) {
    static const char *const headers[] = {NULL,
                                          "",
                                          "00",
                                          "00-" TRACE "-" SPAN,
                                          "00-" TRACE "-" SPAN "-1",
                                          "00-" TRACE "-" SPAN "-0g",
                                          "ff-" TRACE "-" SPAN "-01",
                                          "0G-" TRACE "-" SPAN "-01",
                                          "00-" TRACE "-" SPAN "-01-more",
                                          "00-" TRACE "-" SPAN "-011",
                                          "00_" TRACE "-" SPAN "-01",
                                          "00-" TRACE "_" SPAN "-01",
                                          "00-00000000000000000000000000000000-" SPAN "-01",
                                          "00-" TRACE "-0000000000000000-01",
                                          "00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01"};
    for (size_t i = 0; i < sizeof(headers) / sizeof(*headers); i++) {
        struct trace_context trace, other;
        trace_context_begin(&trace, headers[i]);
        trace_context_begin(&other, headers[i]);
        assert_true(trace.sampled);
        assert_string_equal(trace.parent_id, "");
        assert_int_equal(strlen(trace.trace_id), TRACE_ID_CHARS);
        assert_string_not_equal(trace.trace_id, TRACE);
        assert_string_not_equal(trace.trace_id, other.trace_id);
        assert_string_not_equal(trace.span_id, other.span_id);
    }
}
