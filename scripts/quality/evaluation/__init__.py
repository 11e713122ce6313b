"""What a configuration of a server costs and gains: tasks with known answers and perplexity, asked
over the OpenAI completions API, paired over the same samples.  scripts/quality/eval.py is its command."""
