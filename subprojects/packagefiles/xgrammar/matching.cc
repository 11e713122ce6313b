/* matching.cc - the other translation unit of xgrammar: which tokens a grammar allows. */
#include "cpp/compiled_grammar.cc"
#include "cpp/earley_parser.cc"
#include "cpp/fsm.cc"
#include "cpp/grammar_compiler.cc"
#include "cpp/grammar_functor.cc"
#include "cpp/grammar_matcher.cc"
#include "cpp/suffix_automata.cc"
#include "cpp/tokenizer_info.cc"
