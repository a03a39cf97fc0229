"""Pictures of simulations: SVG written by hand, so that it needs no package, and one HTML page.

chart   lines over two axes, with a legend
page    all of it for some runs; and busy engines over time, a row for each
"""
