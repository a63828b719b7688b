"""CarRacing in C: track, physics, telemetry and drawing (docs/simulator.md)."""
