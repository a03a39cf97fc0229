"""A directory on Redis 7.

directory   the contract, and one engine's entry
follow      what changes
contents    pure: what a look finds, and what of it can be used
scripts     the steps that must be one, as Lua
access      a client, and what its errors mean
"""
