"""Kernel search and tests for misspecification."""
