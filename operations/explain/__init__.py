"""`pdgate explain`: what happened to one call, and why.

collect   asks a gateway for the record of a call
story     the record, in lines that can be read
cli       the command
"""
