"""The block-size table: layouts and block sizes against suites, with memory, latency and spread. See docs/layouts.md."""
