"""Rows of providers and models, calls and what they cost: limits, sums, reports."""
