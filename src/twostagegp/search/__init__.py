"""Kernel search and misspecification tests."""
