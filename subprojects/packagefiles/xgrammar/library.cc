/* library.cc - xgrammar as one translation unit: the large headers that its files share are read once.
 *
 * What makes grammars of texts runs once a request, and is compiled with the -O1 of the command line, which takes
 * half the time of -O2. */
#include "cpp/compiled_grammar.cc"
#include "cpp/fsm.cc"
#include "cpp/fsm_builder.cc"
#include "cpp/grammar.cc"
#include "cpp/grammar_builder.cc"
#include "cpp/grammar_functor.cc"
#include "cpp/grammar_parser.cc"
#include "cpp/json_schema_converter.cc"
#include "cpp/regex_converter.cc"
#include "cpp/structural_tag.cc"
#include "cpp/suffix_automata.cc"
#include "cpp/support/logging.cc"
#include "cpp/support/recursion_guard.cc"
#include "cpp/tokenizer_info.cc"

/* Which tokens a grammar allows: this runs for each token. */
#pragma GCC optimize("O2")
#include "cpp/earley_parser.cc"
#include "cpp/grammar_compiler.cc"
#include "cpp/grammar_matcher.cc"
