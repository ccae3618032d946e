"""Figures: ``draw.draw`` makes each from files. Only this room, and the page for its curves, import matplotlib."""
