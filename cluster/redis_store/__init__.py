"""A directory on Redis 7.

directory   the contract, over the rest
announce    keeps one engine's entry
follow      tells what changes
contents    pure: what a look finds, and what of it can be used
scripts     the steps that must be one, as Lua
access      a client, and what its errors mean
"""
