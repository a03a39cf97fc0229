"""`pdgate top`: what the console shows, in a terminal.

feed       the gateway's pictures, one a second; when it is away, that
strokes    numbers as bars and lines of characters
pairs      who hands over to whom
view       a picture as tables, as wide and high as there is room
watching   shows them until it is told to stop
access     the URL and the token, as they are given
cli        the command
"""
