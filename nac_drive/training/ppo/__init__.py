"""PPO: a driver learns by driving."""
