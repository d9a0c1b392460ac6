"""Deterministic simulation: clients, threads, time, a network and files, all decided by a seed."""
