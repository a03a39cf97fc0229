"""What runs pdgate elsewhere: manifests, dashboards, alerts. Nothing here is installed."""
