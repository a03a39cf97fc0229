"""Load generators of others, unmodified, against the gateway in front of reference engines."""
