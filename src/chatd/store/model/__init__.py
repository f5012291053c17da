"""Rows of providers and models, and what calls cost: limits, sums, reports."""
