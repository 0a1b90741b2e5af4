"""Measuring: benchmarks, certificates, diagnoses, theory and tuning."""
