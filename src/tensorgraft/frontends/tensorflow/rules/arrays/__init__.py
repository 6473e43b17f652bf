"""Shapes, places in arrays, and what is put together or searched by them."""
