"""Pyramids: copies of an array with fewer and fewer elements, for viewers."""
