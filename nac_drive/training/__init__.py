"""Behaviour cloning, DAgger and PPO: settings, loops, run folders."""
