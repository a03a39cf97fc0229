"""SRV records, asked of the servers that resolv.conf names; needs dnspython (extra `dns`).

The system's own resolver does not tell them. Where engines really are, it is asked as ever.
"""
