"""Measuring: benchmarks, certificates, diagnoses."""
