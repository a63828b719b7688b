"""Training: behaviour cloning, DAgger and PPO, their settings and their run folders."""
