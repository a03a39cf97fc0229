"""Rules for Prometheus."""
