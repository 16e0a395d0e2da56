"""Measuring: workloads (suites, traces, prompts), the load generator and what it reports."""
