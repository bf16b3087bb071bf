"""The parts of benchmarks/bdc_study.py."""
