"""`pdgate top`: what the console shows, in a terminal.

feed       the gateway's pictures, one a second; when it is away, that
strokes    numbers as bars and lines of characters
pairs      which engine hands over to which
view       a picture as tables, as wide and high as there is room
watching   shows them until it has to stop
cli        the command
"""
